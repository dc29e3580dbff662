"""Dataclasses as msgpack values and back, by their types: a value that does not fit exactly is an error."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import operator
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_SCALARS = frozenset({str, int, float, bool, bytes, types.NoneType})

T = TypeVar("T")


class MessageError(ValueError):
    """Bytes that are not a message of this version."""


def fields_of(message: Any) -> list[Any]:
    """The fields of a dataclass in their order, as msgpack or JSON values."""
    values = _getter(type(message))(message)  # type: ignore[arg-type]  # a class is hashable
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS or kind is dict:
        return value
    return [_plain(one) for one in value] if kind is list else fields_of(value)


def build(cls: type[T], values: object) -> T:
    """The inverse of `fields_of`.

    Raises:
        MessageError: fields that do not fit.
    """
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

    if not all(_is_scalar(hints[field.name]) for field in fields):
        return read
    # Of scalars the types say all, and few combinations of them occur: one look instead of one for each field.
    fitting: set[tuple[type, ...]] = set()

    def read_scalars(values: Any, where: str) -> Any:
        if type(values) is list and tuple(map(type, values)) in fitting:
            return cls(*values)
        built = read(values, where)
        fitting.add(tuple(map(type, values)))
        return built

    return read_scalars


def _is_scalar(hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return all(kind in _SCALARS for kind in kinds)


def _misfit(value: Any, where: str) -> MessageError:
    return MessageError(f"{where} cannot be {reprlib.repr(value)}")
