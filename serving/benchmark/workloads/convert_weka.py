"""Weka's kv-cache-tester traces of coding-agent sessions (Claude Code): a session is a JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field, ValidationError

from serving.benchmark.workloads.convert_mooncake import runs
from serving.benchmark.workloads.trace_format import Count, Name, Seconds, TraceCall, TraceWorkflow, what_is_wrong

MAIN = "main"


class _Request(BaseModel):
    t: Annotated[Seconds, Field(ge=0)]
    type: str = "s"
    input: Annotated[int, Field(ge=1, alias="in")]
    out: Count
    hash_ids: list[Count]
    stop: str | None = None
    api_time: Annotated[Seconds, Field(ge=0)] | None = None


class _SubAgent(BaseModel):
    subagent_type: Name = "agent"
    requests: list[dict[str, Any]]


class _Session(BaseModel):
    id: Name
    block_size: Annotated[int, Field(ge=1)]
    hash_id_scope: Literal["local", "global"] = "local"
    requests: Annotated[list[dict[str, Any]], Field(min_length=1)]


def workflows(source: Path, problems: list[str]) -> Iterator[TraceWorkflow]:
    """A session becomes a workflow.

    The source is a folder of `.json` files, a file with one session, or a file with a session in each line. The agent
    of a request is `main`; those of a nested sub-agent are put among them by start time, as `sub:` and the sub-agent's
    type. `t` is the start, `t` + `api_time` the end (unknown without `api_time`), `stop` the tool. Block ids are local
    to the session unless `hash_id_scope` says otherwise. A request whose prompt has no block is left out, as is one
    that cannot be read.
    """
    for where, text in _sessions(source):
        try:
            session = _Session.model_validate_json(text)
        except ValidationError as error:
            problems.append(f"{where}: {what_is_wrong(error)}")
            continue
        calls = list(_calls(session, where, problems))
        if not calls:
            problems.append(f"{where}: session {session.id!r} has no request with blocks")
            continue
        yield TraceWorkflow(
            workflow_id=session.id,
            source="weka",
            block_size=session.block_size,
            hash_id_scope=session.hash_id_scope,
            calls=sorted(calls, key=lambda call: call.start_s or 0.0),
        )


def _sessions(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for file in sorted(source.glob("*.json")):
            yield str(file), file.read_bytes()
        return
    text = source.read_bytes()
    # One session may be spread over many lines; many sessions are one in each line, which is no JSON as a whole.
    with suppress(orjson.JSONDecodeError):
        orjson.loads(text)
        yield str(source), text
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{source}, line {number}", line


def _calls(session: _Session, where: str, problems: list[str]) -> Iterator[TraceCall]:
    for number, item in enumerate(session.requests):
        place = f"{where}: requests.{number}"
        if item.get("type") != "subagent":
            yield from _call(MAIN, item, session.block_size, place, problems)
            continue
        try:
            nested = _SubAgent.model_validate(item)
        except ValidationError as error:
            problems.append(f"{place}: {what_is_wrong(error)}")
            continue
        for inner, request in enumerate(nested.requests):
            inside = f"{place}.requests.{inner}"
            yield from _call(f"sub:{nested.subagent_type}", request, session.block_size, inside, problems)


def _call(agent: str, item: dict[str, Any], block_size: int, place: str, problems: list[str]) -> Iterator[TraceCall]:
    try:
        request = _Request.model_validate(item)
    except ValidationError as error:
        problems.append(f"{place}: {what_is_wrong(error)}")
        return
    blocks = len(request.hash_ids)
    if blocks == 0 or abs(blocks * block_size - request.input) >= block_size:
        problems.append(f"{place}: {blocks} blocks of {block_size} tokens do not make {request.input} tokens")
        return
    yield TraceCall(
        agent=agent,
        prompt_tokens=request.input,
        output_tokens=request.out,
        blocks_rle=runs(request.hash_ids),
        start_s=request.t,
        end_s=None if request.api_time is None else request.t + request.api_time,
        tool=request.stop or None,
    )
