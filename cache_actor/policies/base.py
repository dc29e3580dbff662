"""The contract of eviction policies: what may leave a tier, in which order. Pure code; time is a parameter."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

# Values are integers in units of 1/VALUE_ONE, so that sums of them are exact in whatever order they are added.
VALUE_ONE = 1 << 20

ValueTable = Mapping[str, int]
"""For one workflow: the value of each agent's coming calls. An agent that is not in it has the value 0."""

Key = tuple[float, ...]


class Combine(Enum):
    """How the values of a node's owners become the value of the node."""

    SUM = "sum"
    MAX = "max"


@dataclass(slots=True)
class NodeFacts:
    """What a policy may know of one cache node.

    retired: no active workflow owns it, and it is not a dormant anchor (in strict mode: dormant or not).
    retirement: for a retired node, the place in the order in which nodes retired.
    shared: several workflows have used it, ended ones included; agents' anchors are what is shared.
    known: at least one active owner has a value table, be it an empty one.
    value: over the active owners that have a table, and their agents that used the node, the sum or the maximum of
        the table's values, in units of 1/VALUE_ONE; 0 if not known.
    tokens: its size.
    last_access: the engine's access counter; only its order means anything.
    touched_at: when a call last used it, in seconds of the clock that `now` is on.
    chance: the chance of reuse that a learning policy has asked for, from 0 to 1; one half while nothing is known.
    """

    retired: bool
    retirement: int
    shared: bool
    known: bool
    value: int
    tokens: int
    last_access: float
    touched_at: float
    chance: float = 0.5


class EvictionPolicy(ABC):
    """Orders what may leave a tier: the lowest key leaves first.

    Contract, proved for every implementation by tests/unit/test_policy_contract.py:

    * pure: the key depends on the arguments alone, time included;
    * total: keys of any two nodes compare, and ties end in `last_access`;
    * neutral: while no owner has a value table, nothing is retired and nothing is learned (all chances are equal), the
      order is `last_access`, SGLang's LRU, whatever the other facts say (`touched_at` need not agree with it);
    * retired first: a retired node sorts below every node that is not (all policies but `lru`), and retired nodes
      among themselves by `retirement`;
    * monotonic: with everything else equal, a higher value of a known node never sorts lower;
    * steady: `changes_at(now)` is later than `now`, and until then (that moment not included) the order of any set
      of nodes is what it is at `now`.

    An implementation is a frozen dataclass of its parameters, registered under its name.
    """

    __slots__ = ()

    name: ClassVar[str]
    combine: ClassVar[Combine] = Combine.SUM

    @abstractmethod
    def key(self, node: NodeFacts, now: float) -> Key:
        """The sort key of `node` at `now` (seconds)."""

    def changes_at(self, now: float) -> float:
        """When the passing of time alone may change the order, in seconds; infinity for most policies."""
        return math.inf

    @property
    def strict(self) -> bool:
        """Whether a dormant anchor counts as retired, as PBKV has it. For whoever fills in `NodeFacts.retired`."""
        return False

    @property
    def piecewise(self) -> bool:
        """Whether of a victim no more leaves than is asked for; SGLang's own order evicts whole nodes."""
        return False

    def _check_number(self, parameter: str, low: float, high: float) -> None:
        """Raises ValueError unless the parameter is a number from `low` to `high`."""
        value = getattr(self, parameter)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"policy {self.name!r}: {parameter} is {value!r}; give a number from {low:g} to {high:g}")

    def _check_choice(self, parameter: str, choices: tuple[str | bool, ...]) -> None:
        """Raises ValueError unless the parameter is one of `choices`."""
        value = getattr(self, parameter)
        if not isinstance(value, str | bool) or value not in choices:
            listed = ", ".join(str(choice) for choice in choices)
            raise ValueError(f"policy {self.name!r}: {parameter} is {value!r}; choose from {listed}")


def after_retired(node: NodeFacts, *place: float) -> Key:
    """The key that puts retired nodes first, the others by `place`, and ties by `last_access`.

    `place` must have the same length for all nodes of a policy.
    """
    if node.retired:
        return (0.0, node.retirement, node.last_access)
    return (1.0, *place, node.last_access)


def clock_period(now: float, period_s: float) -> tuple[float, float]:
    """Start and end of the period that holds `now`: start <= now < end, the same pair for every `now` between them."""
    count = math.floor(now / period_s)
    # The quotient may be rounded across a multiple; the multiples themselves decide.
    if count * period_s > now:
        count -= 1
    elif (count + 1) * period_s <= now:
        count += 1
    return count * period_s, (count + 1) * period_s


_POLICIES: dict[str, type[EvictionPolicy]] = {}


def register(cls: type[EvictionPolicy]) -> type[EvictionPolicy]:
    """Class decorator: makes a policy known by its `name`."""
    _POLICIES[cls.name] = cls
    return cls


def policy_names() -> list[str]:
    return sorted(_POLICIES)


def make_policy(name: str, parameters: Mapping[str, Any] | None = None) -> EvictionPolicy:
    """A policy by its name.

    Raises:
        ValueError: an unknown name or parameter (both listed), or a value out of range.
    """
    if name not in _POLICIES:
        raise ValueError(f"unknown policy {name!r}; choose from {', '.join(policy_names())}")
    given = parameters or {}
    make: Callable[..., EvictionPolicy] = _POLICIES[name]
    known = list(inspect.signature(make).parameters)
    for parameter in given:
        if parameter not in known:
            takes = ", ".join(known) if known else "no parameters"
            raise ValueError(f"policy {name!r}: unknown parameter {parameter!r}; it takes {takes}")
    return make(**given)
