"""A workflow's trace as a record: what may stand in it, and how it becomes bytes.

The first record of a file is its header, the msgpack list `["forecache-traces", VERSION, id]`; the id, 8 random bytes,
tells it from another file that may come to bear its name. A workflow's record is the list `["workflow", workflow,
source, ending, started_at, agents, calls]`; `agents` maps a name to `[anchor_tokens, anchor_hashes]`, and a call is the
list of the fields of `Call` in their order. Whatever is read, from these records or from other formats, passes through
`make_call` and `make_trace`, so that no trace in the process holds a name, a number or a size beyond the limits below.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import msgpack

from predictor_actor.base import MAX_NAME, AgentFacts, Call, Ending, WorkflowTrace

FORMAT = "forecache-traces"
VERSION = 1
KIND = "workflow"

MAX_CALLS = 20_000
MAX_TOKENS = (1 << 31) - 1
MAX_SECONDS = 1e10
MAX_ANCHOR_PIECES = 64
# 16,384 numbers of 2 bytes: twice the hidden size of the largest open models.
MAX_HIDDEN_BYTES = 1 << 15
MAX_RECORD_BYTES = 1 << 24

_ENDINGS = frozenset(get_args(Ending))
_CALL_FIELDS = operator.attrgetter(*[field.name for field in dataclasses.fields(Call)])
_CALL_LENGTH = len(dataclasses.fields(Call))


class RecordError(ValueError):
    """A record, a line or a trace that does not fit; says what and with which value."""


class VersionError(ValueError):
    """A header of another version of the format; names it."""


def header() -> bytes:
    """The header of a new file."""
    record: bytes = msgpack.packb([FORMAT, VERSION, os.urandom(8)])
    return record


def encode(trace: WorkflowTrace) -> bytes:
    """The trace as a record.

    Raises:
        RecordError: what it holds is beyond the limits, so that no reader would take it.
    """
    made = make_trace(
        trace.workflow,
        [make_call(*_CALL_FIELDS(call)) for call in trace.calls],
        trace.ending,
        trace.started_at,
        trace.agents,
        trace.source,
    )
    agents = {name: [facts.anchor_tokens, facts.anchor_hashes] for name, facts in made.agents.items()}
    calls = [_CALL_FIELDS(call) for call in made.calls]
    fields = [KIND, made.workflow, made.source, made.ending, made.started_at, agents, calls]
    try:
        record: bytes = msgpack.packb(fields)
    except (UnicodeEncodeError, OverflowError) as error:
        raise RecordError(f"it cannot be written: {error}") from error
    if len(record) > MAX_RECORD_BYTES:
        raise RecordError(f"it takes {len(record)} bytes; the limit is {MAX_RECORD_BYTES}")
    return record


def decode(record: bytes) -> WorkflowTrace | None:
    """The trace in a record; None if it is a header.

    Raises:
        RecordError: it is neither, or what it holds is beyond the limits.
        VersionError: it is the header of a file of another version.
    """
    try:
        fields = msgpack.unpackb(record)
    except Exception as error:  # msgpack raises a family of unrelated types on malformed input
        raise RecordError(f"it is not msgpack: {reprlib.repr(str(error))}") from error
    if type(fields) is list and fields[:1] == [FORMAT]:
        version = fields[1] if len(fields) > 1 else None
        if version != VERSION:
            raise VersionError(f"version {reprlib.repr(version)} of the format; this build reads {VERSION}")
        return None
    if type(fields) is not list or len(fields) != 7 or fields[0] != KIND:
        raise RecordError(f"a record is a list of 7 that begins with {KIND!r}, not {reprlib.repr(fields)}")
    _, workflow, source, ending, started_at, agents, calls = fields
    if type(agents) is not dict or type(calls) is not list:
        raise RecordError(f"agents are a map and calls a list, not {reprlib.repr([agents, calls])}")
    facts = {name: _facts(value) for name, value in agents.items()}
    return make_trace(workflow, [_call(value) for value in calls], ending, started_at, facts, source)


def make_call(
    agent: Any,
    prompt_tokens: Any = 0,
    output_tokens: Any = 0,
    start_s: Any = None,
    end_s: Any = None,
    tool: Any = None,
    hidden: Any = None,
) -> Call:
    """A call of what was read.

    Raises:
        RecordError: a value that a call cannot have.
    """
    _check_name("agent", agent)
    _check_count("prompt_tokens", prompt_tokens)
    _check_count("output_tokens", output_tokens)
    if tool is not None:
        _check_name("tool", tool)
    if hidden is not None and (type(hidden) is not bytes or not 0 < len(hidden) <= MAX_HIDDEN_BYTES or len(hidden) % 2):
        raise RecordError(f"hidden is 2 to {MAX_HIDDEN_BYTES} bytes of float16, not {reprlib.repr(hidden)}")
    start = None if start_s is None else _seconds("start_s", start_s)
    end = None if end_s is None else _seconds("end_s", end_s)
    if start is not None and end is not None and end < start:
        raise RecordError(f"end_s {end} is before start_s {start}")
    return Call(agent, prompt_tokens, output_tokens, start, end, tool, hidden)


def make_trace(
    workflow: Any,
    calls: Sequence[Call],
    ending: Any = "final",
    started_at: Any = 0.0,
    agents: Mapping[str, AgentFacts] | None = None,
    source: Any = "",
) -> WorkflowTrace:
    """A trace of what was read and of calls that `make_call` has made.

    Raises:
        RecordError: a value that a trace cannot have.
    """
    _check_name("workflow", workflow)
    if type(source) is not str or len(source) > MAX_NAME:
        raise RecordError(f"source is a text of at most {MAX_NAME} characters, not {reprlib.repr(source)}")
    if type(ending) is not str or ending not in _ENDINGS:
        raise RecordError(f"ending is one of {', '.join(sorted(_ENDINGS))}, not {reprlib.repr(ending)}")
    if len(calls) > MAX_CALLS:
        raise RecordError(f"it has {len(calls)} calls; the limit is {MAX_CALLS}")
    facts = dict(agents or {})
    if len(facts) > MAX_CALLS:
        raise RecordError(f"it has {len(facts)} agents; the limit is {MAX_CALLS}")
    for name, known in facts.items():
        _check_name("agent", name)
        _check_facts(known)
    return WorkflowTrace(
        workflow, tuple(calls), cast(Ending, ending), _seconds("started_at", started_at), facts, source
    )


def _call(fields: object) -> Call:
    if type(fields) is not list or len(fields) != _CALL_LENGTH:
        raise RecordError(f"a call is a list of {_CALL_LENGTH} fields, not {reprlib.repr(fields)}")
    return make_call(*fields)


def _facts(fields: object) -> AgentFacts:
    if type(fields) is not list or len(fields) != 2 or type(fields[1]) is not list:
        raise RecordError(f"an agent's facts are [anchor_tokens, anchor_hashes], not {reprlib.repr(fields)}")
    return AgentFacts(fields[0], tuple(fields[1]))


def _check_facts(facts: AgentFacts) -> None:
    _check_count("anchor_tokens", facts.anchor_tokens)
    if len(facts.anchor_hashes) > MAX_ANCHOR_PIECES:
        raise RecordError(f"an anchor has {len(facts.anchor_hashes)} pieces; the limit is {MAX_ANCHOR_PIECES}")
    for piece in facts.anchor_hashes:
        if type(piece) is not int or not -(1 << 63) <= piece < 1 << 64:
            raise RecordError(f"a piece of an anchor is an integer of 64 bits, not {reprlib.repr(piece)}")


def _check_name(what: str, name: Any) -> None:
    if type(name) is not str or not 0 < len(name) <= MAX_NAME:
        raise RecordError(f"{what} is a name of 1 to {MAX_NAME} characters, not {reprlib.repr(name)}")


def _check_count(what: str, tokens: Any) -> None:
    if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
        raise RecordError(f"{what} is a number of tokens from 0 to {MAX_TOKENS}, not {reprlib.repr(tokens)}")


def _seconds(what: str, value: Any) -> float:
    if type(value) is float or type(value) is int:
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if abs(seconds) <= MAX_SECONDS:
            return seconds
    raise RecordError(f"{what} is a time in seconds, at most {MAX_SECONDS:g}, not {reprlib.repr(value)}")
