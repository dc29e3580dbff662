"""What is to be said to each engine, gathered until it can be sent as plans. Pure: no clock, no network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from cache_actor.messages import EnginePlan, PrefetchOrder
from serving.benchmark.forecasts import Word

# A table is replaced by the next of its workflow, and dropped at its end; a call may take minutes meanwhile.
TABLE_LIFE_S = 900.0
# An order that could not be served by then comes too late for the call it was for.
ORDER_LIFE_S = 15.0
MAX_ORDER_TOKENS = 1 << 20


@dataclass(slots=True)
class _Waiting:
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    orders: dict[tuple[str, str], int] = field(default_factory=dict)


class PlanDesk:
    """Words of many workflows become few plans: of each workflow the newest table and orders, in one plan or two.

    Tables and orders go in plans of their own, since they are of use for different times.

    Args:
        numbers: rising plan numbers, beyond any that the engines have seen.
        prefetch: whether words' orders are sent.
    """

    def __init__(self, numbers: Iterator[int], prefetch: bool) -> None:
        self._numbers = numbers
        self._order_numbers = itertools.count(1)
        self._prefetch = prefetch
        self._waiting: dict[str, _Waiting] = {}

    def say(self, engine: str, workflow: str, word: Word) -> None:
        """The newest word on a workflow, for one engine."""
        waiting = self._waiting.setdefault(engine, _Waiting())
        waiting.tables[workflow] = word.table
        self.order(engine, workflow, word)

    def order(self, engine: str, workflow: str, word: Word) -> None:
        """The word's prefetches alone, once more: what was there at first may have been evicted since."""
        if not self._prefetch or not word.prefetch:
            return
        waiting = self._waiting.setdefault(engine, _Waiting())
        for key in [key for key in waiting.orders if key[0] == workflow]:
            del waiting.orders[key]
        waiting.orders |= {(workflow, agent): value for agent, value in word.prefetch.items() if value > 0}

    def forget(self, workflow: str) -> None:
        """The workflow is over: what waits of it is not worth sending."""
        for waiting in self._waiting.values():
            waiting.tables.pop(workflow, None)
            for key in [key for key in waiting.orders if key[0] == workflow]:
                del waiting.orders[key]

    def take(self, engine: str) -> list[EnginePlan]:
        """The plans for an engine, in the order in which to send them; from now on nothing waits for it."""
        waiting = self._waiting.pop(engine, _Waiting())
        plans = []
        if waiting.tables:
            plans.append(EnginePlan(next(self._numbers), TABLE_LIFE_S, [], dict(waiting.tables), []))
        if waiting.orders:
            orders = [
                PrefetchOrder(next(self._order_numbers), workflow, agent, value, MAX_ORDER_TOKENS)
                for (workflow, agent), value in waiting.orders.items()
            ]
            plans.append(EnginePlan(next(self._numbers), ORDER_LIFE_S, [], {}, orders))
        return plans
