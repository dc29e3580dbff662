"""Every message that crosses a process, and the one place where it becomes bytes.

On the wire a message is the msgpack list `[VERSION, kind, field, field, …]` in the order of the dataclass. A
decoder accepts exactly that: another version, an unknown kind, a missing field or a wrong type is a
`MessageError`, never a half-filled object.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import msgpack

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport
from cache_actor.codec import MessageError, build, fields_of
from cache_actor.snapshot_messages import SnapshotDelta, SnapshotsAsked

VERSION = 4
# The largest report, with names of the longest ids everywhere, is somewhat smaller.
MAX_MESSAGE_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Who makes a call. `source` names where the workflow id was found (see `serving.identity`)."""

    workflow: str
    agent: str
    parent: str | None = None
    final: bool = False
    priority: int | None = None
    tenant: str | None = None
    source: str = "inferred"


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine has done since it started, in counts that only grow, and what its tiers hold, in tokens.

    at: until when, in seconds of its machine's monotonic clock.
    prefill_s: seconds in which it was on prefill; `busy_s` in which it was on anything.
    computed: tokens of prompts, those of calls that are not over included; `output` tokens generated.
    regret: prompt tokens that were computed though they had been in the cache before; None: the cache cannot tell.
    reused: prompt tokens of finished calls that were found in the cache; 0 if it cannot tell.
    host_tokens: 0 without a host tier.
    """

    at: float = 0.0
    prefill_s: float = 0.0
    busy_s: float = 0.0
    computed: int = 0
    output: int = 0
    regret: int | None = None
    reused: int = 0
    device_tokens: int = 0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """One scheduler rank is alive: sent at most every quarter of a second, and before every long forward.

    Counters only grow, so two beats tell what moved between them. `forward_tokens` is the size of the forward that
    is about to start (0 between forwards): the reason why no further beat may come for a while. `at` is when it was
    sent, in seconds of the machine's monotonic clock, so that a receiver that reads late does not take it for news.
    `pressure` counts tokens that were evicted though nobody could say that they were over.
    """

    rank: int
    pid: int
    forwards: int
    forward_tokens: int
    running: int
    waiting: int
    at: float
    pressure: int = 0
    work: Work = Work()


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call reached the scheduler; `identity` is what its `kv_hints` said, None for a call without one."""

    rid: str
    prompt_tokens: int
    identity: RequestIdentity | None


@dataclass(frozen=True, slots=True)
class CallsStarted:
    """The calls that reached the scheduler since the last such message, in order."""

    calls: list[CallStarted]


@dataclass(frozen=True, slots=True)
class PrefetchOrder:
    """Bring back what an agent of a workflow will need, from the host tier to the device.

    value: the agent's one-step value, in units of 1/VALUE_ONE; the highest is served first.
    max_tokens: load no more than this.
    """

    order: int
    workflow: str
    agent: str
    value: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the prompts of an agent begin with: token ids as little-endian int32."""

    agent: str
    ids: bytes


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What the coordinator tells one engine to do.

    plan: its number; a plan that is not newer than the last one applied is refused.
    time_to_live_s: after this its tables lapse, and its orders that have not begun expire.
    ends: workflows that are over.
    tables: for a workflow, the value of each of its agents; None takes the values back.
    prefetches: orders, each answered by a receipt.
    policy, parameters: another eviction policy from now on; None leaves it.
    prefetch: another way to prefetch from now on (`off`, `conservative`, `aggressive`); None leaves it.
    renew: whether the tables that the engine holds are good for as long again as this plan's.
    priorities: of the coming calls of a workflow, higher first; for an engine that schedules by priority.
    warm_ups: anchors to compute before anybody asks for them, when there is nothing else to do.
    """

    plan: int
    time_to_live_s: float
    ends: list[str]
    tables: dict[str, dict[str, int] | None]
    prefetches: list[PrefetchOrder]
    policy: str | None = None
    parameters: dict[str, str | int | float | bool] | None = None
    prefetch: str | None = None
    renew: bool = False
    priorities: dict[str, int] | None = None
    warm_ups: list[Anchor] | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an order: accepted, clipped, deferred, rejected or expired; `tokens` were loaded."""

    order: int
    status: str
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """What a workflow has lost of a tier (`device`, `host`) since the last report, in tokens, and why (`retired`,
    `low_value`, `recency`)."""

    workflow: str
    tier: str
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of its cache when it is told a plan: what is new since the last report, and how things stand.

    receipts, evictions: since the last report.
    applied: the highest number of a plan that was applied, whoever sent it.
    residency: of the workflows that the plan has tables or orders for, tokens on the device and on the host alone.
    counters, pools: in tokens, but for those that say otherwise.
    """

    plan: int
    accepted: bool
    reason: str
    receipts: list[Receipt]
    counters: dict[str, int]
    pools: dict[str, int]
    residency: dict[str, list[int]]
    evictions: list[Eviction]
    applied: int


@dataclass(frozen=True, slots=True)
class WorkflowsEnded:
    """Workflows that are over, told to an engine apart from any plan."""

    workflows: list[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to an engine: `report` or `dump`. Answered by `Told` under the same number."""

    number: int
    what: str


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to `Ask`, as JSON."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A call of a workflow has begun, or is over (`over`). Counts are tokens.

    at: when, in seconds since 1970 by the engine's machine.
    prompt_tokens: 0 while it is not known.
    output_tokens, hit_device, hit_host, hit_storage: known when it is over; 0 for one that failed or was aborted.
    """

    workflow: str
    agent: str
    over: bool
    at: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    hit_device: int = 0
    hit_host: int = 0
    parent: str | None = None
    hit_storage: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowSeen:
    """A living workflow as its engine remembers it, for a coordinator that does not.

    agents: who made its latest calls, oldest first.
    numbers: for each of them tokens of prompt and output, start and end in seconds since 1970; NaN: not known.
    length: calls in all; `running` of them run.
    """

    workflow: str
    parent: str | None
    agents: list[str]
    numbers: list[float]
    length: int
    running: int


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What an engine tells the coordinator: all that has happened since the report before.

    engine, epoch: its id, and a number that is another after a restart.
    number: of the report, one more than that of the one before.
    applied_plan: the last plan that the engine has applied; 0: none.
    events: in the order in which they happened.
    ended: workflows that are over, and how they ended (`final`, `deleted`, `idle`).
    seen: living workflows, told anew when the coordinator has asked for that.
    cache: how each plan went that has been answered since the report before.
    anchors: those of agents that were found, or found to be of another length.
    warmed: agents whose warm-ups are over, and whether they were done.
    running, waiting: calls.
    pressure, work: as `Beat` has them.
    pending_tokens: of the prompts of calls that wait, those that are not expected to be in the cache.
    draining: the engine is to be left by its workflows, and gets no new ones.
    """

    engine: str
    epoch: int
    number: int
    applied_plan: int
    events: list[CallEvent]
    ended: dict[str, str]
    seen: list[WorkflowSeen]
    cache: list[EngineReport]
    anchors: list[Anchor]
    warmed: dict[str, bool]
    running: int
    waiting: int
    pressure: int = 0
    work: Work = Work()
    pending_tokens: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What the coordinator answers.

    epoch: of the engine that was answered; another one must not do what the plan says.
    tell_all: it does not know this engine, or has missed a report: the next one should have all living workflows.
    plan: None if there is nothing to do.
    held: workflows that wait at the ingresses for a place on this engine, and its share of those that wait for any.
    """

    epoch: int
    tell_all: bool
    plan: EnginePlan | None
    held: float = 0.0


Message = (
    Beat
    | CallsStarted
    | EnginePlan
    | EngineReport
    | WorkflowsEnded
    | Ask
    | Told
    | SyncReport
    | SyncAnswer
    | AdmissionReport
    | AdmissionAnswer
    | SnapshotsAsked
    | SnapshotDelta
)

_KINDS: dict[str, type[Message]] = {
    "beat": Beat,
    "calls_started": CallsStarted,
    "plan": EnginePlan,
    "report": EngineReport,
    "ended": WorkflowsEnded,
    "ask": Ask,
    "told": Told,
    "sync": SyncReport,
    "sync_answer": SyncAnswer,
    "admission": AdmissionReport,
    "admission_answer": AdmissionAnswer,
    "snapshots_asked": SnapshotsAsked,
    "snapshots": SnapshotDelta,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def encode(message: Message) -> bytes:
    """One message as bytes; strings that are not valid UTF-8 are refused by msgpack (UnicodeEncodeError)."""
    packed: bytes = msgpack.packb([VERSION, _NAMES[type(message)], *fields_of(message)])
    return packed


def decode(data: bytes) -> Message:
    """The message in `data`.

    Raises:
        MessageError: not msgpack, too large, another version, an unknown kind, or fields that do not fit.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"message of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    try:
        parts = msgpack.unpackb(data, strict_map_key=True)
    except Exception as error:  # msgpack raises a family of unrelated types on malformed input
        raise MessageError(f"not a msgpack message: {error}") from error
    if not isinstance(parts, list) or len(parts) < 2:
        raise MessageError("a message is a list [version, kind, fields…]")
    version, kind, *fields = parts
    if type(version) is not int or version != VERSION:
        raise MessageError(f"message version {reprlib.repr(version)}; this build speaks version {VERSION}")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise MessageError(f"unknown message kind {reprlib.repr(kind)}; known: {', '.join(_KINDS)}")
    return build(_KINDS[kind], fields)


def identity_fields(identity: RequestIdentity) -> list[Any]:
    """An identity as msgpack or JSON values, in the order of the dataclass."""
    return fields_of(identity)


def identity_from_fields(fields: object) -> RequestIdentity:
    """The inverse of `identity_fields`.

    Raises:
        MessageError: fields that do not fit.
    """
    return build(RequestIdentity, fields)
