"""Every message that crosses a process, and the one place where it becomes bytes.

On the wire a message is the msgpack list `[VERSION, kind, field, field, …]` in the order of the dataclass. A
decoder accepts exactly that: another version, an unknown kind, a missing field or a wrong type is a
`MessageError`, never a half-filled object.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
import typing
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


Message = Beat | CallStarted
M = TypeVar("M", Beat, CallStarted)

_KINDS: dict[str, type[Message]] = {"beat": Beat, "call_started": CallStarted}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def encode(message: Message) -> bytes:
    """One message as bytes; strings that are not valid UTF-8 are refused by msgpack (UnicodeEncodeError)."""
    fields = (getattr(message, field.name) for field in dataclasses.fields(message))
    body = [identity_fields(v) if isinstance(v, RequestIdentity) else v for v in fields]
    packed: bytes = msgpack.packb([VERSION, _NAMES[type(message)], *body])
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
    return [getattr(identity, field.name) for field in dataclasses.fields(identity)]


def identity_from_fields(fields: object) -> RequestIdentity:
    """The inverse of `identity_fields`.

    Raises:
        MessageError: fields that do not fit.
    """
    if not isinstance(fields, list):
        raise MessageError("an identity is a list of its fields")
    return _build(RequestIdentity, fields)


T = TypeVar("T")


def _build(cls: type[T], values: list[Any]) -> T:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if len(values) != len(fields):
        raise MessageError(f"{cls.__name__} has {len(fields)} fields, got {len(values)}")
    hints = _type_hints(cls)
    for index, field in enumerate(fields):
        accepted = hints[field.name]
        if RequestIdentity in accepted and values[index] is not None:
            values[index] = identity_from_fields(values[index])
        value = values[index]
        if type(value) not in accepted:
            raise MessageError(f"{cls.__name__}.{field.name} cannot be {reprlib.repr(value)}")
    return cls(*values)


_HINTS: dict[type, dict[str, tuple[type, ...]]] = {}


def _type_hints(cls: type) -> dict[str, tuple[type, ...]]:
    """For each field the exact types it accepts."""
    if cls not in _HINTS:
        _HINTS[cls] = {
            name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            for name, hint in typing.get_type_hints(cls).items()
        }
    return _HINTS[cls]
