"""What finds the number of workflows that one engine should run at once: the contract and its registry."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Signals:
    """What one engine shows at a moment. Counts and seconds only grow, so two of them tell what was between.

    Attributes:
        at: when, in seconds of any one clock.
        admitted: workflows that are in; `held` those that have a call waiting for a place.
        running_calls, waiting_calls: in the engine, with and without a place in its batch.
        prefill_s: seconds the engine has spent on prefill; `busy_s` on anything.
        computed: prompt tokens computed; `regret` those of them that had been in the cache before.
        reused: prompt tokens found in the cache.
        output: tokens generated.
        working_set: tokens of the contexts of the workflows that are in, as of their latest calls.
        growth: tokens by which these are forecast to grow until their next calls.
        device_tokens, host_tokens: what the tiers hold.
    """

    at: float
    admitted: int
    held: int
    running_calls: int
    waiting_calls: int
    prefill_s: float
    busy_s: float
    computed: int
    regret: int
    reused: int
    output: int
    working_set: int
    growth: int
    device_tokens: int
    host_tokens: int


class LimitController(ABC):
    """Finds how many workflows one engine carries. One object an engine, told about it once in a while.

    Contract, proved for every implementation by tests/unit/test_limit_contract.py:

    * a limit is None (everybody comes in) or at least 1;
    * while no token is computed again and nobody is held it stays, or becomes, None;
    * it takes any signals, a standstill or a step back of the counts (an engine that was replaced) included.
    """

    name: ClassVar[str]

    @abstractmethod
    def observe(self, signals: Signals) -> int | None:
        """What the engine shows now; the limit from now on."""

    def explain(self) -> dict[str, float]:
        """The figures behind the latest limit, for people."""
        return {}


# What the configuration says if nobody says anything else.
DEFAULT_CONTROLLER = "miss-curve"

_CONTROLLERS: dict[str, type[LimitController]] = {}


def register(cls: type[LimitController]) -> type[LimitController]:
    """Class decorator: makes a controller known under its name."""
    _CONTROLLERS[cls.name] = cls
    return cls


def controller_names() -> list[str]:
    return list(_CONTROLLERS)


def make_controller(name: str, parameters: Mapping[str, Any] | None = None) -> LimitController:
    """A controller by its name.

    Raises:
        ValueError: there is no such controller or parameter, or a value that it cannot take.
    """
    cls = _CONTROLLERS.get(name)
    if cls is None:
        raise ValueError(f"unknown admission {name!r}; choose from {', '.join(_CONTROLLERS)}")
    known = [one for one in inspect.signature(cls).parameters if one not in ("args", "kwargs")]
    for parameter in parameters or {}:
        if parameter not in known:
            raise ValueError(f"admission {name!r} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
    return cls(**(parameters or {}))
