"""The file format of recorded workflows: JSON Lines, a workflow in each line. Read and written here alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from serving.benchmark.workloads.base import WorkloadError

Seconds = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class TraceSegment(BaseModel):
    """A piece of text. Equal ids are equal text, in the whole file."""

    id: Name
    tokens: Annotated[int, Field(ge=1)]


class TraceCall(BaseModel):
    """A step of a workflow. The prompt is in `prompt_segments` or in `blocks_rle`.

    Attributes:
        prompt_tokens: its length, as measured. Segments may be estimates; then their lengths count, not this.
        blocks_rle: `[first, count]` is `count` blocks with consecutive ids from `first`. The last block of a prompt
            may be partly filled, and less than a block may follow the last one: `prompt_tokens` is exact.
        llm: false for a step without a model call.
        start_s, end_s: seconds from any moment that is the same for all calls of the workflow, and for all
            workflows if their arrivals are to be used.
    """

    agent: Name
    prompt_segments: list[TraceSegment] = []
    prompt_tokens: Count
    output_tokens: Count | None = None
    llm: bool = True
    start_s: Seconds | None = None
    end_s: Seconds | None = None
    tool: str | None = None
    blocks_rle: list[tuple[Count, Annotated[int, Field(ge=1)]]] = []

    @model_validator(mode="after")
    def _times_in_order(self) -> Self:
        if self.start_s is not None and self.end_s is not None and self.end_s < self.start_s:
            raise ValueError(f"end_s {self.end_s} is before start_s {self.start_s}")
        return self

    @property
    def has_prompt(self) -> bool:
        """Whether it is a model call whose prompt was recorded."""
        return self.llm and bool(self.prompt_segments or self.blocks_rle)


class TraceWorkflow(BaseModel):
    """A line of the file.

    Attributes:
        hash_id_scope: where equal block ids are equal text: in the workflow, or in the whole file.
    """

    workflow_id: Name
    source: str = ""
    block_size: Annotated[int, Field(ge=1)] | None = None
    hash_id_scope: Literal["local", "global"] | None = None
    parent: str | None = None
    calls: Annotated[list[TraceCall], Field(min_length=1)]

    @model_validator(mode="after")
    def _prompts_are_whole(self) -> Self:
        for number, call in enumerate(self.calls):
            if call.llm and call.prompt_tokens and not call.has_prompt:
                raise ValueError(f"calls.{number} has neither prompt_segments nor blocks_rle")
            if call.prompt_segments and call.blocks_rle:
                raise ValueError(f"calls.{number} has both prompt_segments and blocks_rle; give one")
            if call.blocks_rle:
                self._check_blocks(number, call)
        if not any(call.has_prompt for call in self.calls):
            raise ValueError("no call has a prompt")
        return self

    def _check_blocks(self, number: int, call: TraceCall) -> None:
        if self.block_size is None:
            raise ValueError(f"calls.{number} has blocks_rle, and block_size is missing")
        blocks = sum(count for _, count in call.blocks_rle)
        if abs(blocks * self.block_size - call.prompt_tokens) >= self.block_size:
            raise ValueError(
                f"calls.{number}: {blocks} blocks of {self.block_size} tokens do not make a prompt of"
                f" {call.prompt_tokens} tokens"
            )


def read(path: Path) -> Iterator[tuple[int, TraceWorkflow | WorkloadError]]:
    """For each line that is not empty its number, from 1, and the workflow or what is wrong with the line.

    Raises:
        WorkloadError: the file cannot be read.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parse(line, f"{path}, line {number}")
    except OSError as error:
        raise WorkloadError(f"cannot read the trace {path}: {error.strerror}") from error


def write_line(workflow: TraceWorkflow) -> str:
    """The workflow as a line of the format."""
    return workflow.model_dump_json(exclude_defaults=True) + "\n"


def what_is_wrong(error: ValidationError) -> str:
    """The first problem of it in a sentence: where, what, and the value if it is short."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    value = first["input"]
    given = f" (it is {value!r})" if isinstance(value, str | int | float) and len(repr(value)) <= 60 else ""
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}{given}" if place else message


def _parse(line: bytes, where: str) -> TraceWorkflow | WorkloadError:
    try:
        return TraceWorkflow.model_validate_json(line)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            return WorkloadError(f"{where}, is not JSON: {error.errors()[0]['msg'].removeprefix('Invalid JSON: ')}")
        return WorkloadError(f"{where}: {what_is_wrong(error)}")
