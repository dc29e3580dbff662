"""The points of results as a sweep: what varies, and what to draw against what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Point = Mapping[str, Any]
FIRST_AXIS = "concurrency"
NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Slice:
    """Points that differ in one axis alone, in its order; `fixed` is what they share of what varies in the sweep."""

    axis: str | None
    fixed: dict[str, Any]
    points: list[Point]

    @property
    def title(self) -> str:
        return describe(self.fixed)


def describe(values: Mapping[str, Any]) -> str:
    """Values of a point in words: "concurrency 16, noise 0.2"."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def varying(points: Sequence[Point]) -> list[str]:
    """The names whose values differ between points, in the order in which points name them."""
    names = dict.fromkeys(name for point in points for name in point["point"])
    return [name for name in names if len({str(point["point"].get(name)) for point in points}) > 1]


def label(point: Point, points: Sequence[Point]) -> str:
    """What tells a point from the others of its sweep."""
    names = varying(points) or list(point["point"])
    return describe({name: point["point"].get(name) for name in names}) or str(point["key"])


def main_axis(points: Sequence[Point]) -> str | None:
    """Concurrency if it varies, or the first numeric axis that does; noise only if nothing else does."""
    numeric = [
        name for name in varying(points) if any(number(point["point"].get(name)) is not None for point in points)
    ]
    preferred = sorted(numeric, key=lambda name: (name == NOISE, name != FIRST_AXIS))
    return preferred[0] if preferred else None


def slices(points: Sequence[Point], axis: str | None) -> list[Slice]:
    """The sweep cut into rows of points along an axis. Points without a number on it are rows of their own."""
    others = [name for name in varying(points) if name != axis]
    rows: dict[str, tuple[dict[str, Any], list[Point]]] = {}
    for point in points:
        at = number(point["point"].get(axis)) if axis else None
        names = others if at is not None or axis is None else [*others, axis]
        fixed = {name: point["point"].get(name) for name in names}
        key = repr((sorted(fixed.items()), point["key"] if at is None else ""))
        rows.setdefault(key, (fixed, []))[1].append(point)
    return [
        Slice(axis, fixed, sorted(row, key=lambda point: number(point["point"].get(axis)) or 0.0))
        for fixed, row in rows.values()
    ]


def number(value: Any) -> float | None:
    """A value as a number to draw at; None for what is none (and for truth values)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def all_policies(points: Sequence[Point]) -> list[str]:
    """Every policy of a sweep, baselines first, in one order for all pictures and tables."""
    baselines = dict.fromkeys(point["baseline"] for point in points if point["baseline"])
    return list(dict.fromkeys([*baselines, *(name for point in points for name in point["policies"])]))
