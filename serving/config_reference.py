"""The reference of `args:` as a Markdown table, made from the config classes themselves."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from serving.config import AppConfig

_EMPTY: tuple[Any, ...] = (None, {}, [], ())


def reference() -> str:
    """One row for each key of `args:`: its name, type, default and meaning. The README carries it."""
    rows = [f"| `{name}` | {kind} | {default} | {meaning} |" for name, kind, default, meaning in _rows(AppConfig, "")]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from _rows(nested, f"{prefix}{name}.")
        else:
            meaning = (field.description or name.replace("_", " ")).replace("|", "\\|")
            yield f"{prefix}{name}", _type(field.annotation), _default(field), meaning


def _type(annotation: Any) -> str:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(_type(one) for one in typing.get_args(annotation) if one is not types.NoneType)
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    origin = typing.get_origin(annotation) or annotation
    return {dict: "map", tuple: "list", str: "text", int: "integer", float: "number", bool: "flag"}.get(origin, "value")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value in _EMPTY:
        return "–"
    if isinstance(value, tuple):
        return "built in"
    return f"`{json.dumps(value)}`"
