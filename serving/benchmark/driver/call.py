"""One call through HTTP: token ids in, a stream of token ids out, and what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

_DATA = "data: "
_DONE = "[DONE]"
_ERROR_TEXT = 300


@dataclass(slots=True)
class Answer:
    """What a call brought. Times are of the monotonic clock, counts are tokens.

    Attributes:
        output: the ids that were generated, as far as the endpoint returns them (SGLang's `return_token_ids`).
        reached: whether something answered at all.
        route: why the call went to its engine.
    """

    sent_s: float
    first_token_s: float | None = None
    end_s: float = 0.0
    engine: str | None = None
    route: str = ""
    prompt_tokens: int = 0
    hit_device: int = 0
    hit_host: int = 0
    output_tokens: int = 0
    output: list[int] = field(default_factory=list)
    error: str | None = None
    reached: bool = False


def body_of(model: str, prompt: Sequence[int], max_tokens: int, session: str | None) -> dict[str, Any]:
    """A completion of exactly `max_tokens`; `session` for SGLang's own session-aware cache."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    return body if session is None else body | {"session_id": session}


async def make_call(
    http: httpx.AsyncClient,
    body: dict[str, Any],
    headers: dict[str, str],
    on_engine: Callable[[str], object],
    timeout_s: float,
) -> Answer:
    """Makes the call; never raises for what goes wrong with it.

    Args:
        http: a client whose base URL ends in `/v1/`.
        on_engine: told the engine's id when the reply's headers come.
    """
    answer = Answer(time.monotonic())
    data = orjson.dumps(body)
    headers = headers | {"content-type": "application/json"}
    done = False
    try:
        async with (
            asyncio.timeout(timeout_s),
            http.stream("POST", "completions", content=data, headers=headers) as reply,
        ):
            answer.reached = True
            if reply.status_code != httpx.codes.OK:
                text = (await reply.aread()).decode(errors="replace")
                answer.error = f"HTTP {reply.status_code}: {_reason(text)}"
                return answer
            if engine := reply.headers.get("x-engine-id"):
                answer.engine, answer.route = engine, reply.headers.get("x-forecache-route", "")
                on_engine(engine)
            async for line in reply.aiter_lines():
                if line.startswith(_DATA):
                    done = take(answer, line.removeprefix(_DATA), time.monotonic()) or done
        if not done and answer.error is None:
            answer.error = "the stream broke off before its end"
    except TimeoutError:
        answer.error = f"no end within {timeout_s:g} s (limits.call_timeout_s)"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.end_s = time.monotonic()
    return answer


def take(answer: Answer, event: str, now: float) -> bool:
    """Takes one event of the stream; whether it was the last."""
    if event == _DONE:
        return True
    chunk = orjson.loads(event)
    if "error" in chunk:
        answer.error = _reason(event)
        return True
    for choice in chunk.get("choices") or ():
        ids = choice.get("token_ids")
        if (ids or choice.get("text")) and answer.first_token_s is None:
            answer.first_token_s = now
        answer.output += ids or ()
    if usage := chunk.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.hit_device = details.get("device", details.get("cached_tokens") or 0)
        answer.hit_host = details.get("host", 0)
    return False


def _reason(text: str) -> str:
    try:
        error = orjson.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return text[:_ERROR_TEXT]
