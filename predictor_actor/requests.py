"""What the coordinator asks of a predictor and what comes back, as bytes.

A message is the msgpack list `[FORMAT, VERSION, kind, field, …]`. Prefixes travel as columns: one table of names, and
arrays as little-endian bytes. A decoder accepts exactly what the encoder can write: anything else is a `RequestError`,
never a half-filled object.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from predictor_actor.agents import MAX_AGENTS
from predictor_actor.base import HORIZON, MAX_NAME, PATH_LIMIT, AgentFacts, Forecasts, Prefix, WorkflowTrace
from predictor_actor.trace_record import MAX_HIDDEN_BYTES, RecordError, VersionError, check_name, facts_of_fields
from predictor_actor.trace_record import decode as decode_trace
from predictor_actor.trace_record import encode as encode_trace

FORMAT = "forecache-forecast"
VERSION = 1
MAX_BYTES = 1 << 26
# Workflows that begin, or end, in one request; and agents introduced.
MAX_WORKFLOWS = 4096
MAX_INTRODUCED = 4096
MAX_LENGTH = (1 << 31) - 1
# Of a row of probabilities, from 1.
MAX_ERROR = 1e-2

_NO_STATE = b""


class RequestError(ValueError):
    """Bytes that are no such message of this version, or a message that cannot be sent; says what and which value."""


@dataclass(frozen=True, slots=True)
class Request:
    """What has happened, and what is asked for.

    Attributes:
        begun: workflows whose latest call has just begun: observed, then forecast; one row of the reply for each.
        ended: workflows that have ended: learned from. Their calls were observed as they began.
        facts: agents to introduce.
    """

    begun: Sequence[Prefix]
    ended: Sequence[WorkflowTrace]
    facts: Mapping[str, AgentFacts]


@dataclass(frozen=True, slots=True)
class Answer:
    """Forecasts as they were made.

    Attributes:
        forecasts: one row for each of `begun`, in order.
        made_at: seconds since 1970.
        seconds: what it took, waiting for the batch included.
    """

    forecasts: Forecasts
    made_at: float
    seconds: float


def encode_request(request: Request) -> bytes:
    """The request as bytes. Of a path only the last PATH_LIMIT calls are sent, which is as far as a predictor looks.

    Raises:
        RequestError: what it holds is beyond the limits, so that no receiver would take it.
    """
    if len(request.ended) > MAX_WORKFLOWS:
        raise RequestError(f"{len(request.ended)} workflows have ended; at most {MAX_WORKFLOWS} fit a request")
    try:
        ended = [encode_trace(trace) for trace in request.ended]
    except RecordError as error:
        raise RequestError(f"a workflow that has ended: {error}") from error
    facts = {name: [known.anchor_tokens, list(known.anchor_hashes)] for name, known in request.facts.items()}
    _facts(facts)
    columns = _columns(request.begun)
    _prefixes(columns)
    return _pack("request", columns, ended, facts)


def decode_request(data: bytes) -> Request:
    """The request in bytes.

    Raises:
        RequestError: there is none, or what it holds is beyond the limits.
    """
    begun, ended, facts = _unpack("request", data, 3)
    if type(ended) is not list or len(ended) > MAX_WORKFLOWS:
        raise RequestError(f"ended is a list of at most {MAX_WORKFLOWS} records, not {reprlib.repr(ended)}")
    return Request(_prefixes(begun), [_trace(record) for record in ended], _facts(facts))


def encode_answer(answer: Answer) -> bytes:
    """The answer as bytes, its probabilities as float32.

    Raises:
        RequestError: what it holds no receiver would take.
    """
    forecasts = answer.forecasts
    steps = np.ascontiguousarray(forecasts.steps, "<f4")
    fields = [list(forecasts.agents), len(steps), steps.tobytes(), forecasts.model, answer.made_at, answer.seconds]
    _answer(*fields)
    return _pack("answer", *fields)


def decode_answer(data: bytes) -> Answer:
    """The answer in bytes.

    Raises:
        RequestError: there is none, or its forecasts are no distributions.
    """
    return _answer(*_unpack("answer", data, 6))


def _pack(kind: str, *fields: object) -> bytes:
    try:
        data: bytes = msgpack.packb([FORMAT, VERSION, kind, *fields])
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"it cannot be written: {reprlib.repr(str(error))}") from error
    if len(data) > MAX_BYTES:
        raise RequestError(f"it takes {len(data)} bytes; the limit is {MAX_BYTES}: send fewer workflows at once")
    return data


def _unpack(kind: str, data: bytes, count: int) -> list[Any]:
    if not isinstance(data, bytes) or len(data) > MAX_BYTES:
        size = len(data) if isinstance(data, bytes) else reprlib.repr(data)
        raise RequestError(f"a message is at most {MAX_BYTES} bytes, not {size}")
    try:
        fields = msgpack.unpackb(data)
    except Exception as error:  # msgpack raises a family of unrelated types on malformed input
        raise RequestError(f"it is not msgpack: {reprlib.repr(str(error))}") from error
    if type(fields) is not list or fields[:1] != [FORMAT]:
        raise RequestError(f"a message is a list that begins with {FORMAT!r}, not {reprlib.repr(fields)}")
    if len(fields) < 2 or type(fields[1]) is not int or fields[1] != VERSION:
        raise RequestError(f"version {reprlib.repr(fields[1:2])} of the format; this build reads {VERSION}")
    if fields[2:3] != [kind] or len(fields) != 3 + count:
        raise RequestError(f"{kind} and {count} fields were expected, not {reprlib.repr(fields[2:])}")
    found: list[Any] = fields[3:]
    return found


def _columns(prefixes: Sequence[Prefix]) -> list[Any]:
    """Names, agents (places among the names), sizes of the paths, lengths, numbers, hidden states, workflows."""
    places: dict[str, int] = {}
    agents: list[int] = []
    sizes, numbers = [], []
    for prefix in prefixes:
        kept = list(prefix.agents)[-PATH_LIMIT:]
        agents += [places.setdefault(name, len(places)) for name in kept]
        sizes.append(len(kept))
        if prefix.numbers.shape != (len(prefix.agents), 4):
            raise RequestError(f"numbers of {len(prefix.agents)} calls have the shape {prefix.numbers.shape}")
        numbers.append(prefix.numbers[-PATH_LIMIT:])
    table = np.concatenate(numbers) if numbers else np.zeros((0, 4))
    try:
        return [
            list(places),
            np.array(agents, "<u4").tobytes(),
            bytes(sizes),
            np.array([prefix.length for prefix in prefixes], "<i8").tobytes(),
            table.astype("<f4").tobytes(),
            [prefix.hidden or _NO_STATE for prefix in prefixes],
            [prefix.workflow for prefix in prefixes],
        ]
    except (OverflowError, ValueError, TypeError) as error:
        raise RequestError(f"the length of a path is a number of calls: {error}") from error


def _prefixes(columns: object) -> list[Prefix]:
    """The prefixes in columns, each value checked."""
    if type(columns) is not list or len(columns) != 7:
        raise RequestError(f"begun is a list of 7 columns, not {reprlib.repr(columns)}")
    names, agent_bytes, size_bytes, length_bytes, number_bytes, hidden, workflows = columns
    if type(workflows) is not list or len(workflows) > MAX_WORKFLOWS:
        raise RequestError(f"workflows are a list of at most {MAX_WORKFLOWS}, not {reprlib.repr(workflows)}")
    count = len(workflows)
    for workflow in workflows:
        if type(workflow) is not str or len(workflow) > MAX_NAME:
            raise RequestError(f"a workflow's id has at most {MAX_NAME} characters, not {reprlib.repr(workflow)}")
    sizes = _array("sizes", size_bytes, "u1", count).astype(np.int64)
    lengths = _array("lengths", length_bytes, "<i8", count)
    if sizes.max(initial=0) > PATH_LIMIT:
        raise RequestError(f"a path has {sizes.max()} calls; at most the last {PATH_LIMIT} are sent")
    if lengths.max(initial=0) > MAX_LENGTH or (lengths < sizes).any() or (lengths[sizes == 0] != 0).any():
        raise RequestError(
            f"a length is how many calls the workflow has made, from those in its path to {MAX_LENGTH}, 0 with none"
        )
    total = int(sizes.sum())
    agents = _array("agents", agent_bytes, "<u4", total)
    numbers = _array("numbers", number_bytes, "<f4", 4 * total).astype(np.float32).reshape(total, 4)
    if np.isinf(numbers).any():
        raise RequestError("a number of a call is infinite; what is not known is NaN")
    paths = _names(names, total, "agents")[agents] if _below(agents, names) else np.zeros(0, object)
    if type(hidden) is not list or len(hidden) != count:
        raise RequestError(f"hidden is a list of {count}, not {reprlib.repr(hidden)}")
    for state in hidden:
        if type(state) is not bytes or len(state) > MAX_HIDDEN_BYTES or len(state) % 2:
            raise RequestError(f"a hidden state is at most {MAX_HIDDEN_BYTES} bytes of float16: {reprlib.repr(state)}")
    ends = np.cumsum(sizes).tolist()
    return [
        Prefix(paths[end - size : end].tolist(), numbers[end - size : end], length, hidden[row] or None, workflows[row])
        for row, (end, size, length) in enumerate(zip(ends, sizes.tolist(), lengths.tolist(), strict=True))
    ]


def _array(what: str, data: object, kind: str, count: int) -> npt.NDArray[Any]:
    expected = count * np.dtype(kind).itemsize
    if type(data) is not bytes or len(data) != expected:
        size = len(data) if type(data) is bytes else reprlib.repr(data)
        raise RequestError(f"{what} take {expected} bytes, not {size}")
    return np.frombuffer(data, kind)


def _below(places: npt.NDArray[Any], names: object) -> bool:
    """Whether there are any places; all of them are those of a name."""
    if type(names) is not list or (len(places) and int(places.max()) >= len(names)):
        raise RequestError(f"a path names an agent that is not among {reprlib.repr(names)}")
    return bool(len(places)) or bool(names)


def _names(names: object, most: int, what: str) -> npt.NDArray[np.object_]:
    if type(names) is not list or len(names) > most:
        raise RequestError(f"{what} are a list of at most {most} names, not {reprlib.repr(names)}")
    for name in names:
        _check_name(name)
    if len(set(names)) != len(names):
        raise RequestError(f"a name stands twice among {reprlib.repr(names)}")
    found = np.empty(len(names), object)
    found[:] = names
    return found


def _check_name(name: object) -> None:
    try:
        check_name("agent", name)
    except RecordError as error:
        raise RequestError(str(error)) from error


def _trace(record: object) -> WorkflowTrace:
    if type(record) is not bytes:
        raise RequestError(f"a workflow that has ended is a record, not {reprlib.repr(record)}")
    try:
        trace = decode_trace(record)
    except (RecordError, VersionError) as error:
        raise RequestError(f"a workflow that has ended: {error}") from error
    if trace is None:
        raise RequestError("a workflow that has ended is a record, not a header")
    return trace


def _facts(facts: object) -> dict[str, AgentFacts]:
    if type(facts) is not dict or len(facts) > MAX_INTRODUCED:
        raise RequestError(f"facts are a map of at most {MAX_INTRODUCED} agents, not {reprlib.repr(facts)}")
    try:
        for name in facts:
            check_name("agent", name)
        return {name: facts_of_fields(fields) for name, fields in facts.items()}
    except RecordError as error:
        raise RequestError(f"facts: {error}") from error


def _answer(agents: object, rows: object, steps: object, model: object, made_at: object, seconds: object) -> Answer:
    names = tuple(_names(agents, MAX_AGENTS, "agents"))
    if type(rows) is not int or not 0 <= rows <= MAX_BYTES:
        raise RequestError(f"rows are a number of workflows, not {reprlib.repr(rows)}")
    found = _array("steps", steps, "<f4", rows * HORIZON * (len(names) + 1)).astype(np.float32)
    found = found.reshape(rows, HORIZON, len(names) + 1)
    # Comparisons with NaN are false.
    if not ((found >= 0).all() and (np.abs(found.sum(axis=2) - 1) <= MAX_ERROR).all()):
        raise RequestError("a row of steps is no distribution")
    if type(model) is not str or len(model) > 2 * MAX_NAME:
        raise RequestError(f"model is a name and a version, not {reprlib.repr(model)}")
    for what, value in (("made_at", made_at), ("seconds", seconds)):
        if type(value) is not float or not math.isfinite(value) or value < 0:
            raise RequestError(f"{what} is a time in seconds, not {reprlib.repr(value)}")
    return Answer(Forecasts(names, found, model), float(made_at), float(seconds))  # type: ignore[arg-type]
