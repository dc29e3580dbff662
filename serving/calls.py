"""What travels between the ingress and an engine over a Serve handle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cache_actor.messages import RequestIdentity

Kind = Literal["chat", "completion"]
JSON = "application/json"
SSE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One call on its way to an engine. `body` is the client's JSON, not yet validated.

    wanted: the engine that a workflow which has none yet was let in to.
    """

    kind: Kind
    body: dict[str, Any]
    identity: RequestIdentity
    rid: str
    anchor: str | None = None
    wanted: str | None = None


@dataclass(frozen=True, slots=True)
class EngineQuery:
    """A question to one named engine."""

    engine: str


@dataclass(slots=True)
class Usage:
    """What a call has cost so far, in tokens.

    began: whether it was valid and went to the engine.
    """

    began: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    hit_device: int = 0
    hit_host: int = 0
    hit_storage: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The first thing an engine answers. With media type SSE more chunks (`bytes`) follow; else this is all.

    prompt_tokens: of the call's prompt; 0 if they were not counted.
    route: why the call went to this engine, as the ingress has it.
    lost: the engine is down and says so; another may answer.
    """

    status: int
    media_type: str
    engine: str
    body: bytes
    retry_after_s: int | None = None
    prompt_tokens: int = 0
    route: str = ""
    lost: bool = False
