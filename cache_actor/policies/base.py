"""The contract of eviction policies: what may leave a tier, in which order. Pure code; time is a parameter."""

from __future__ import annotations

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
    known: at least one active owner has a value table.
    value: over the active owners that have a table, and their agents that used the node, the sum or the maximum of
        the table's values, in units of 1/VALUE_ONE.
    tokens: its size.
    last_access: the engine's access counter; only its order means anything.
    touched_at: when a call last used it, in seconds of the clock that `now` is on.
    """

    retired: bool
    retirement: int
    shared: bool
    known: bool
    value: int
    tokens: int
    last_access: float
    touched_at: float


class EvictionPolicy(ABC):
    """Orders what may leave a tier: the lowest key leaves first.

    Contract, proved for every implementation by tests/unit/test_policy_contract.py:

    * pure: the key depends on the arguments alone, time included;
    * total: keys of any two nodes compare, and ties end in `last_access`;
    * neutral: while no owner has a value table and nothing is retired, the order is `last_access`, SGLang's LRU;
    * retired first: a retired node sorts below every node that is not (all policies but `lru`), and retired nodes
      among themselves by `retirement`;
    * monotonic: with everything else equal, a higher value never sorts lower;
    * steady: between two calls of `changes_at` the order of any set of nodes stays what it is.

    An implementation is a frozen dataclass of its parameters, registered under its name.
    """

    name: ClassVar[str]
    combine: ClassVar[Combine] = Combine.SUM

    @abstractmethod
    def key(self, node: NodeFacts, now: float) -> Key:
        """The sort key of `node` at `now` (seconds)."""

    def changes_at(self, now: float) -> float:
        """When the passing of time alone may change the order, in seconds; infinity for most policies."""
        return float("inf")


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
    make: Callable[..., EvictionPolicy] = _POLICIES[name]
    try:
        return make(**(parameters or {}))
    except TypeError as error:
        raise ValueError(f"policy {name!r}: {error}") from error
