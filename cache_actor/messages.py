"""Every message that crosses a process, and the one place where it becomes bytes.

On the wire a message is the msgpack list `[VERSION, kind, field, field, …]` in the order of the dataclass. A
decoder accepts exactly that: another version, an unknown kind, a missing field or a wrong type is a
`MessageError`, never a half-filled object.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import operator
import reprlib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20


class MessageError(ValueError):
    """Bytes that are not a message of this version."""


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
class Beat:
    """One scheduler rank is alive: sent at most every quarter of a second, and before every long forward.

    Counters only grow, so two beats tell what moved between them. `forward_tokens` is the size of the forward that
    is about to start (0 between forwards): the reason why no further beat may come for a while. `at` is when it was
    sent, in seconds of the machine's monotonic clock, so that a receiver that reads late does not take it for news.
    """

    rank: int
    pid: int
    forwards: int
    forward_tokens: int
    running: int
    waiting: int
    at: float


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
class EnginePlan:
    """What the coordinator tells one engine to do.

    plan: its number; a plan that is not newer than the last one applied is refused.
    time_to_live_s: after this its tables lapse, and its orders that have not begun expire.
    ends: workflows that are over.
    tables: for a workflow, the value of each of its agents; None takes the values back.
    prefetches: orders, each answered by a receipt.
    policy, parameters: another eviction policy from now on; None leaves it.
    prefetch: another way to prefetch from now on (`off`, `conservative`, `aggressive`); None leaves it.
    """

    plan: int
    time_to_live_s: float
    ends: list[str]
    tables: dict[str, dict[str, int] | None]
    prefetches: list[PrefetchOrder]
    policy: str | None = None
    parameters: dict[str, str | int | float | bool] | None = None
    prefetch: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an order: accepted, clipped, deferred, rejected or expired; `tokens` were loaded."""

    order: int
    status: str
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of its cache: the receipts since the last report, and its counters and pools in tokens."""

    plan: int
    accepted: bool
    reason: str
    receipts: list[Receipt]
    counters: dict[str, int]
    pools: dict[str, int]


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


Message = Beat | CallsStarted | EnginePlan | EngineReport | WorkflowsEnded | Ask | Told

_KINDS: dict[str, type[Message]] = {
    "beat": Beat,
    "calls_started": CallsStarted,
    "plan": EnginePlan,
    "report": EngineReport,
    "ended": WorkflowsEnded,
    "ask": Ask,
    "told": Told,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}
_SCALARS = frozenset({str, int, float, bool, types.NoneType})

T = TypeVar("T")


def encode(message: Message) -> bytes:
    """One message as bytes; strings that are not valid UTF-8 are refused by msgpack (UnicodeEncodeError)."""
    packed: bytes = msgpack.packb([VERSION, _NAMES[type(message)], *_fields(message)])
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
    return _build(_KINDS[kind], fields)


def identity_fields(identity: RequestIdentity) -> list[Any]:
    """An identity as msgpack or JSON values, in the order of the dataclass."""
    return _fields(identity)


def identity_from_fields(fields: object) -> RequestIdentity:
    """The inverse of `identity_fields`.

    Raises:
        MessageError: fields that do not fit.
    """
    return _build(RequestIdentity, fields)


def _fields(message: Any) -> list[Any]:
    values = _getter(type(message))(message)  # type: ignore[arg-type]  # a class is hashable
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS or kind is dict:
        return value
    return [_plain(one) for one in value] if kind is list else _fields(value)


def _build(cls: type[T], values: object) -> T:
    built: T = _reader(cls)(values, cls.__name__)  # type: ignore[arg-type]  # a class is hashable
    return built


# The scheduler decodes identities, one or more a call: what can be worked out of a type once is.


@functools.cache
def _getter(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in dataclasses.fields(cls)]
    if len(names) == 1:
        return lambda message: (getattr(message, names[0]),)
    return operator.attrgetter(*names)


@functools.cache
def _reader(hint: Any) -> Callable[[Any, str], Any]:
    """What makes a value of the type that `hint` names, exactly: no bool for an int, no int for a float."""
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    if isinstance(hint, types.UnionType):
        return _union_reader(typing.get_args(hint))
    inner = [_reader(one) for one in typing.get_args(hint)]
    match typing.get_origin(hint), inner:
        case builtins.list, [item]:

            def read(value: Any, where: str) -> Any:
                if type(value) is not list:
                    raise _misfit(value, where)
                return [item(one, where) for one in value]

        case builtins.dict, [key, item]:

            def read(value: Any, where: str) -> Any:
                if type(value) is not dict:
                    raise _misfit(value, where)
                return {key(name, where): item(one, where) for name, one in value.items()}

        case _:

            def read(value: Any, where: str) -> Any:
                if type(value) is not hint:
                    raise _misfit(value, where)
                return value

    return read


def _union_reader(hints: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    """Of the alternatives no two are the same type on the wire."""
    readers = {_wire_type(hint): _reader(hint) for hint in hints}

    def read(value: Any, where: str) -> Any:
        reader = readers.get(type(value))
        if reader is None:
            raise _misfit(value, where)
        return reader(value, where)

    return read


def _wire_type(hint: Any) -> Any:
    return list if dataclasses.is_dataclass(hint) else typing.get_origin(hint) or hint


def _dataclass_reader(cls: Any) -> Callable[[Any, str], Any]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    readers = [_reader(hints[field.name]) for field in fields]
    places = [f"{cls.__name__}.{field.name}" for field in fields]

    def read(values: Any, where: str) -> Any:
        if type(values) is not list or len(values) != len(readers):
            raise MessageError(f"{cls.__name__} is a list of {len(readers)} fields, not {reprlib.repr(values)}")
        return cls(*[reader(value, place) for reader, value, place in zip(readers, values, places, strict=True)])

    return read


def _misfit(value: Any, where: str) -> MessageError:
    return MessageError(f"{where} cannot be {reprlib.repr(value)}")
