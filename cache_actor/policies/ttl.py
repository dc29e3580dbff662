"""Continuum (arXiv 2511.02230): while a workflow's tool runs, its nodes are pinned for as long as that pays."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from cache_actor.policies.base import (
    VALUE_ONE,
    Combine,
    EvictionPolicy,
    Key,
    NodeFacts,
    after_retired,
    clock_period,
    register,
)


@register
@dataclass(frozen=True, slots=True)
class Ttl(EvictionPolicy):
    """Retired nodes first, then those that are not pinned, then the pinned ones, each by recency.

    A node's value is the moment until which it is pinned (`pin_table`), the latest of its owners'. A pin holds to the
    end of the period of `refresh_s` in which it expires. A node of which nothing is known is not pinned. A pin orders
    and does not forbid: when nothing else is left, the least recently used pinned node goes.

    refresh_s: the grain of expiries, in seconds.
    """

    name = "ttl"
    combine = Combine.MAX

    refresh_s: float = 1.0

    def __post_init__(self) -> None:
        self._check_number("refresh_s", 0.001, 3600)

    def key(self, node: NodeFacts, now: float) -> Key:
        start, _ = clock_period(now, self.refresh_s)
        pinned = node.known and node.value > max(0.0, start * VALUE_ONE)
        return after_retired(node, float(pinned))

    def changes_at(self, now: float) -> float:
        return clock_period(now, self.refresh_s)[1]


def pin_table(agents: Iterable[str], until_s: float) -> dict[str, int]:
    """Pins what these agents of a workflow used until `until_s`, in seconds of the clock of the policy's `now`."""
    return dict.fromkeys(agents, round(until_s * VALUE_ONE))


class ReturnTimes:
    """How long each tool took to return, most recent `samples` of each of at most `max_tools` tools.

    At the limit the tool that was observed longest ago is forgotten.

    Raises:
        ValueError: a limit below 1.
    """

    def __init__(self, samples: int = 256, max_tools: int = 1024) -> None:
        for name, limit in (("samples", samples), ("max_tools", max_tools)):
            if limit < 1:
                raise ValueError(f"{name} is {limit}; give at least 1")
        self._samples = samples
        self._max_tools = max_tools
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def observe(self, tool: str, seconds: float) -> None:
        """Notes that the workflow came back `seconds` after it had called `tool`.

        Raises:
            ValueError: the time is negative or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"return time of tool {tool!r} is {seconds!r} s; give a finite time of at least 0")
        self._times.setdefault(tool, deque(maxlen=self._samples)).append(seconds)
        self._times.move_to_end(tool)
        if len(self._times) > self._max_tools:
            self._times.popitem(last=False)

    def ttl(self, tool: str, benefit_s: float, memory_cost_per_s: float) -> float:
        """The pin time in seconds that maximises P(return within it) * benefit_s - memory_cost_per_s * time.

        Of equally good times the shortest; 0 if none is worth it or the tool has never been observed.

        Args:
            benefit_s: the seconds that a hit saves.
            memory_cost_per_s: the seconds that others lose for each second of the pin.
        """
        times = sorted(self._times.get(tool, ()))
        best, best_gain = 0.0, 0.0
        for returned, time in enumerate(times, start=1):
            gain = returned / len(times) * benefit_s - memory_cost_per_s * time
            if gain > best_gain:
                best, best_gain = time, gain
        return best
