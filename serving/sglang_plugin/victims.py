"""What leaves the cache when room is wanted: both tiers' leaves in order, and how much of each goes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from cache_actor.policies.base import Key
from serving.sglang_plugin.counters import POLICY_NS
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.pieces import PIECES, kept
from serving.sglang_plugin.prefetch import is_moving
from serving.sglang_plugin.reuse import Tier

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache


class Victims:
    """The victim queues of a cache.

    wanted: tokens that the eviction under way is to bring.
    pressure: tokens that have left though they were not retired. Until there are any all policies do the same.

    Args:
        tiers: whose order is the policy's; the others go by recency.
    """

    def __init__(self, cache: ForecacheCache, tiers: Iterable[str]) -> None:
        self.queues: dict[str, VictimQueue] = {}
        self.wanted = 0
        self.pressure = 0
        self._cache = cache
        self._tiers = frozenset(tiers)

    def new_queue(self, tier: Tier) -> VictimQueue:
        """An empty queue for a tier, instead of the one that it had."""
        cache = self._cache
        key = partial(cache.victim_key, tier) if tier in self._tiers else _recency
        queue = self.queues[tier] = VictimQueue(key, cache.policy_changes_at, cache.clock, tier)
        return queue

    def next(self, queue: VictimQueue) -> Any | None:
        """The first of a queue; the time it takes counts as the policy's."""
        cache = self._cache
        begin = time.perf_counter_ns()
        victim = queue.first()
        if cache.learning is not None and victim is not None:
            cache.learning.evicting(queue.tier, queue, victim)
        cache.counters[POLICY_NS] += time.perf_counter_ns() - begin
        return victim

    def cut(self, victim: Any, tier: Tier, wanted: int) -> None:
        """Cuts a victim so that no more of it leaves than the `wanted` tokens, if that is how victims leave."""
        cache = self._cache
        if not cache.piecewise or is_moving(victim):
            return
        begin = time.perf_counter_ns()
        if staying := kept(len(victim.key), wanted, cache.capacity(tier) // PIECES, cache.page_size):
            last_access_time = victim.last_access_time
            cache.split_node(victim, staying).last_access_time = last_access_time
        cache.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def count(self, tier: Tier, victim: Any) -> None:
        """Counts the tokens of a victim by tier and by why it was chosen."""
        cache, entry = self._cache, victim.entry
        reason = "retired" if cache.ledger.is_retired(entry) else "low_value" if entry.tables else "recency"
        cache.counters[f"evicted_{tier}_{reason}"] += len(victim.key)
        cache.losses.lost(entry, tier, reason, len(victim.key))
        if reason != "retired":
            self.pressure += len(victim.key)
        if tier == "device":
            cache.prefetcher.lost(victim)
            if cache.prefetcher.at_work and reason != "retired":
                cache.counters["active_evictions_by_prefetch"] += len(victim.key)

    def lowered(self, nodes: list[Any]) -> None:
        """The nodes may leave sooner than was thought."""
        for queue in self.queues.values():
            queue.lowered(nodes)

    def reorder(self) -> None:
        """Another policy is followed."""
        for queue in self.queues.values():
            queue.rebuild()


def _recency(node: Any, now: float) -> Key:
    return (node.last_access_time,)
