"""Mooncake's request traces: `{"timestamp", "input_length", "output_length", "hash_ids"}` in each line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from serving.benchmark.workloads.trace_format import Count, Seconds, TraceCall, TraceWorkflow, what_is_wrong

BLOCK_SIZE = 512
COMMON_BLOCKS = 2


class _Request(BaseModel):
    timestamp: Seconds
    input_length: Annotated[int, Field(ge=1)]
    output_length: Count
    hash_ids: Annotated[list[Count], Field(min_length=1)]

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        if -(-self.input_length // BLOCK_SIZE) != len(self.hash_ids):
            raise ValueError(
                f"{len(self.hash_ids)} hash_ids do not make {self.input_length} tokens in blocks of {BLOCK_SIZE}"
            )
        return self


def requests(source: Path, problems: list[str]) -> Iterator[TraceWorkflow]:
    """Each request is a workflow of its own, since the log does not say which belong together.

    The agent is `chat`, the timestamp (milliseconds) becomes the start, and the ends are unknown.
    """
    for line, request in _read(source, problems):
        yield _workflow(f"request-{line}", "mooncake", [request])


def sessions(source: Path, problems: list[str]) -> Iterator[TraceWorkflow]:
    """Like `requests`, but requests that share a block beyond the first two are one workflow.

    This is a derivation: the first two blocks may be a system prompt that all share; whoever has a later block in
    common continues a conversation. A request joins the workflow that last used the furthest such block.
    """
    owner: dict[int, int] = {}
    conversations: list[list[_Request]] = []
    for _, request in _read(source, problems):
        own = request.hash_ids[COMMON_BLOCKS:]
        number = next((owner[block] for block in reversed(own) if block in owner), len(conversations))
        if number == len(conversations):
            conversations.append([])
        conversations[number].append(request)
        owner.update(dict.fromkeys(own, number))
    for number, conversation in enumerate(conversations, start=1):
        conversation.sort(key=lambda request: request.timestamp)
        yield _workflow(
            f"conversation-{number}", "mooncake (sessions derived: a shared block beyond the first two)", conversation
        )


def runs(ids: list[int]) -> list[tuple[int, int]]:
    """Ids as (first, count) of consecutive ones."""
    starts = [0, *(place for place, (one, next_) in enumerate(pairwise(ids), start=1) if next_ != one + 1), len(ids)]
    return [(ids[start], end - start) for start, end in pairwise(starts)]


def _read(source: Path, problems: list[str]) -> Iterator[tuple[int, _Request]]:
    with source.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield number, _Request.model_validate_json(line)
            except ValidationError as error:
                problems.append(f"{source}, line {number}: {what_is_wrong(error)}")


def _workflow(name: str, source: str, conversation: list[_Request]) -> TraceWorkflow:
    calls = [
        TraceCall(
            agent="chat",
            prompt_tokens=request.input_length,
            output_tokens=request.output_length,
            blocks_rle=runs(request.hash_ids),
            start_s=request.timestamp / 1000,
        )
        for request in conversation
    ]
    return TraceWorkflow(workflow_id=name, source=source, block_size=BLOCK_SIZE, hash_id_scope="global", calls=calls)
