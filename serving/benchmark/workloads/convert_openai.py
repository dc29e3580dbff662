"""Logs of OpenAI-style chat completion requests, a request in each line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from serving.benchmark.workloads.trace_format import TraceCall, TraceSegment, TraceWorkflow

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4


class _Unreadable(Exception):
    """Why a line is left out."""


def workflows(source: Path, problems: list[str]) -> Iterator[TraceWorkflow]:
    """Requests of one workflow id, ordered by time if all of them have one, become a workflow.

    A line is the request body, or an object that has it as `request` or `body` (OpenAI's batch files). Taken from it:

    * workflow: `metadata.workflow_id`, `session_id`, `prompt_cache_key` or `user`, of the body and then of the line;
      a line without any of these is left out, as no rule could say where it belongs;
    * agent: `metadata.agent`, else `anchor-` and a hash of the system messages and tools;
    * prompt: a segment for the tools and for each message, its id a hash of the content. Its length is estimated, a
      token for 4 bytes of JSON and 4 for a message: `usage.prompt_tokens` is kept beside it, but not divided up;
    * output: `usage.completion_tokens` of the line or its `response`, else the estimated length of the response's
      message, else the request's `max_completion_tokens` or `max_tokens`; a line with none of these is left out;
    * start: `start_s`, `time`, `timestamp` or `created` of the line, in seconds or as an ISO 8601 date; end: `end_s`,
      or the start and `duration_s`. Starts count from the earliest of the file.
    """
    groups: dict[str, list[TraceCall]] = {}
    with source.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                workflow, call = _call(line)
            except _Unreadable as error:
                problems.append(f"{source}, line {number}: {error}")
                continue
            groups.setdefault(workflow, []).append(call)
    earliest = min((call.start_s for calls in groups.values() for call in calls if call.start_s is not None), default=0)
    for workflow, calls in groups.items():
        if all(call.start_s is not None for call in calls):
            calls.sort(key=lambda call: call.start_s or 0.0)
        for call in calls:
            call.start_s = None if call.start_s is None else round(call.start_s - earliest, 6)
            call.end_s = None if call.end_s is None else round(call.end_s - earliest, 6)
        yield TraceWorkflow(workflow_id=workflow, source="openai request log (lengths estimated)", calls=calls)


def _call(text: bytes) -> tuple[str, TraceCall]:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _Unreadable(f"not JSON: {error}") from error
    if not isinstance(line, dict):
        raise _Unreadable("not a JSON object")
    body = next((line[key] for key in ("request", "body") if isinstance(line.get(key), dict)), line)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise _Unreadable("no list of messages")
    tools = body.get("tools") or []
    texts = [("tools", tools)] if tools else []
    segments = [_segment(what, content) for what, content in [*texts, *(("msg", each) for each in messages)]]
    usage = _dict(line, "usage") or _dict(_response(line), "usage")
    start, end = _times(line)
    prompt_tokens = _whole(usage.get("prompt_tokens")) or sum(segment.tokens for segment in segments)
    return _workflow_id(line, body), TraceCall(
        agent=_agent(line, body, messages, tools),
        prompt_segments=segments,
        prompt_tokens=prompt_tokens,
        output_tokens=_output_tokens(line, body, usage),
        start_s=start,
        end_s=end,
    )


def _workflow_id(line: dict[str, Any], body: dict[str, Any]) -> str:
    for place in (body, line):
        for value in (_dict(place, "metadata").get("workflow_id"), *map(place.get, _WORKFLOW_FIELDS)):
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
                return str(value)
    raise _Unreadable(f"no workflow id (looked for metadata.workflow_id, {', '.join(_WORKFLOW_FIELDS)})")


_WORKFLOW_FIELDS = ("session_id", "prompt_cache_key", "user")


def _agent(line: dict[str, Any], body: dict[str, Any], messages: list[dict[str, Any]], tools: Any) -> str:
    for place in (body, line):
        name = _dict(place, "metadata").get("agent")
        if isinstance(name, str) and name:
            return name
    anchor = [message for message in messages if message.get("role") in ("system", "developer")]
    return f"anchor-{_hash([anchor, tools])}"


def _output_tokens(line: dict[str, Any], body: dict[str, Any], usage: dict[str, Any]) -> int:
    counted = _whole(usage.get("completion_tokens"))
    if counted is not None:
        return counted
    choices = _response(line).get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict) and _dict(choices[0], "message"):
        return _estimate(_dict(choices[0], "message"))
    for limit in ("max_completion_tokens", "max_tokens"):
        allowed = _whole(body.get(limit))
        if allowed is not None:
            return allowed
    raise _Unreadable("no usage, no response and no max_tokens: the length of the output is unknown")


def _times(line: dict[str, Any]) -> tuple[float | None, float | None]:
    start = next((_seconds(line[key], key) for key in ("start_s", "time", "timestamp", "created") if key in line), None)
    end = _seconds(line["end_s"], "end_s") if "end_s" in line else None
    if end is None and start is not None and "duration_s" in line:
        end = start + _seconds(line["duration_s"], "duration_s")
    if start is not None and end is not None and end < start:
        raise _Unreadable(f"it ends ({end}) before it starts ({start})")
    return start, end


def _seconds(value: Any, field: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError) as error:
        raise _Unreadable(f"{field} is {value!r}: neither seconds nor an ISO 8601 date") from error


def _response(line: dict[str, Any]) -> dict[str, Any]:
    response = _dict(line, "response")
    # OpenAI's batch results wrap the completion once more.
    return _dict(response, "body") or response


def _segment(what: str, content: Any) -> TraceSegment:
    return TraceSegment(id=f"{what}:{_hash(content)}", tokens=_estimate(content))


def _estimate(content: Any) -> int:
    return TOKENS_PER_MESSAGE + len(orjson.dumps(content)) // BYTES_PER_TOKEN


def _hash(content: Any) -> str:
    return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=10).hexdigest()


def _dict(place: dict[str, Any], key: str) -> dict[str, Any]:
    value = place.get(key)
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
