"""Workloads by name, and the checks of their parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from serving.benchmark.workloads.base import Workload, WorkloadError

Maker = Callable[..., Workload]
_MAKERS: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Decorator: makes a function of a seed and keyword parameters known as the workload `name`."""

    def known(maker: Maker) -> Maker:
        _MAKERS[name] = maker
        return maker

    return known


def workload_names() -> list[str]:
    return sorted(_MAKERS)


def workload_parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a workload but the seed, by name.

    Raises:
        WorkloadError: an unknown name.
    """
    if name not in _MAKERS:
        raise WorkloadError(f"unknown workload {name!r}; choose from {', '.join(workload_names())}")
    signature = inspect.signature(_MAKERS[name])
    return {key: each for key, each in signature.parameters.items() if key != "seed"}


def make_workload(name: str, seed: int, **parameters: Any) -> Workload:
    """A workload by its name; equal arguments make equal workloads, in any process.

    Raises:
        WorkloadError: an unknown name or parameter (both listed), one that is missing, or a value out of range.
    """
    known = workload_parameters(name)
    for parameter in parameters:
        if parameter not in known:
            raise WorkloadError(f"workload {name!r}: unknown parameter {parameter!r}; it takes {', '.join(known)}")
    for parameter, each in known.items():
        if each.default is inspect.Parameter.empty and parameter not in parameters:
            raise WorkloadError(f"workload {name!r} needs the parameter {parameter!r}")
    return _MAKERS[name](seed, **parameters)


def check_whole(workload: str, parameter: str, value: Any, low: int = 1) -> None:
    """Raises WorkloadError unless the value is a whole number from `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise WorkloadError(f"workload {workload!r}: {parameter} is {value!r}; give a whole number from {low}")


def check_number(workload: str, parameter: str, value: Any, low: float = 0, high: float = math.inf) -> None:
    """Raises WorkloadError unless the value is a finite number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value == math.inf:
        limits = f"from {low:g} to {high:g}" if high < math.inf else f"from {low:g}"
        raise WorkloadError(f"workload {workload!r}: {parameter} is {value!r}; give a number {limits}")


def check_choice(workload: str, parameter: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises WorkloadError unless the value is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise WorkloadError(f"workload {workload!r}: {parameter} is {value!r}; choose from {', '.join(choices)}")
