"""Evictions from a hand-made tree that go on for long, and what a victim costs."""

from __future__ import annotations

import time
from typing import Any

from serving.benchmark.hand_made import AGENTS, HandMade


class VictimRun:
    """Evictions that go on for long: victims leave, other leaves come, plans bring new values.

    A cycle is the time in which a hundredth of the leaves is evicted and as many are added, and in which a hundredth
    of the workflows gets new values. All of it is the price of the victims.
    """

    def __init__(self, leaves: int, policy: str = "lookahead") -> None:
        self.made = HandMade(leaves * 11 // 10 // AGENTS, depth=2, policy=policy)
        self.made.own()
        everything = [chain[-1] for chain in self.made.chains]
        self.made.rng.shuffle(everything)
        self.spare = everything[leaves:]
        self.queue = self.made.queues["device"]
        for leaf in everything[:leaves]:
            self.queue.add(leaf)
        self.leaves = leaves
        self.accesses = leaves * 2
        self.run(200)

    def victim_us(self, victims: int) -> tuple[float, float]:
        """Microseconds a victim, and milliseconds of the rebuild that comes once in a while."""
        before = len(self.queue._heap)
        seconds, done = self.run(victims)
        left_over = len(self.queue._heap) - before
        start = time.perf_counter()
        self.queue.rebuild()
        rebuild = time.perf_counter() - start
        # Stale items are cleared away when there are three of them to a leaf: each bears its part of that.
        return (seconds + rebuild * left_over / (3 * self.leaves)) * 1e6 / done, rebuild * 1e3

    def run(self, victims: int) -> tuple[float, int]:
        """Seconds that at least so many victims took, and how many they were."""
        made, queue, spare, ledger = self.made, self.queue, self.spare, self.made.ledger
        learning = made.learning
        a_cycle = self.leaves // 100
        cycles = -(-victims // a_cycle)
        seconds = 0.0
        for _ in range(cycles):
            places = [made.rng.randrange(len(spare)) for _ in range(a_cycle)]
            names = made.rng.sample(made.names, max(1, len(made.names) // 100))
            tables = {name: made.table() for name in names}
            start = time.perf_counter()
            for place in places:
                victim: Any = queue.first()
                if learning is not None:
                    learning.evicting("device", queue, victim)
                    learning.left(victim)
                    learning.computed(len(victim.key))
                    learning.used([spare[place]])
                queue.discard(victim)
                leaf, spare[place] = spare[place], victim
                self.accesses += 1
                leaf.last_access_time = self.accesses
                queue.add(leaf)
            for name, table in tables.items():
                ledger.set_table(name, table)
            seconds += time.perf_counter() - start
        return seconds, cycles * a_cycle
