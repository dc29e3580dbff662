"""What the pools of a cache hold, in tokens: for reports and for people."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache

# What is asked for often is counted anew no oftener than this, in seconds, nor for more than a fiftieth of the time.
MIN_OCCUPANCY_AGE_S = 0.25


class Pools:
    """Sizes of both tiers, and from time to time who occupies them."""

    def __init__(self, cache: ForecacheCache) -> None:
        self._cache = cache
        self._occupancy: dict[str, int] = {}
        self._next_occupancy = -math.inf

    def report(self) -> dict[str, int]:
        cache = self._cache
        pools = {
            "free": cache.free_tokens(),
            "evictable": int(cache.full_evictable_size()),
            "locked": int(cache.full_protected_size()),
            "workflows": len(cache.ledger.owners),
            "nodes": len(cache.tree_core._node_arena) - 1,
        }
        if cache.host_pool_group is not None:
            host = cache.cache_controller.mem_pool_host
            pools |= {"host_free": int(host.available_size()), "host_size": int(host.size)}
        now = time.monotonic()
        if now >= self._next_occupancy:
            self._occupancy = self.occupancy()
            self._next_occupancy = now + max(MIN_OCCUPANCY_AGE_S, 50 * (time.monotonic() - now))
        return pools | self._occupancy

    def residency(self, workflows: Iterable[str]) -> dict[str, list[int]]:
        """Tokens on the device and on the host alone of each workflow that is active here. O(their nodes)."""
        ledger = self._cache.ledger
        found: dict[str, list[int]] = {}
        for workflow in workflows:
            owner = ledger.owners.get(workflow)
            if owner is None or workflow in found:
                continue
            found[workflow] = tiers = [0, 0]
            nodes: Iterable[Any] = owner.nodes()
            for node in nodes:
                tiers[node.evicted] += len(node.key)
        return found

    def occupancy(self) -> dict[str, int]:
        """Tokens by tier and by what they are: of living workflows (`active`), `retired` or neither (`dormant`: anchors
        and what nobody named); and tokens prefetched and not used yet. O(nodes).
        """
        cache = self._cache
        device, host = Counter(active=0, retired=0, dormant=0), Counter(active=0, retired=0, dormant=0)
        for node in cache.tree_core._node_arena.values():
            if node.parent is None:
                continue
            entry = node.entry
            state = "active" if entry.owners else "retired" if cache.ledger.is_retired(entry) else "dormant"
            if not node.evicted:
                device[state] += len(node.key)
            if node.backuped:
                host[state] += len(node.key)
        found = {f"device_{state}": tokens for state, tokens in device.items()}
        if cache.tiered:
            found |= {f"host_{state}": tokens for state, tokens in host.items()}
        return found | {"prefetched_unused": cache.prefetcher.unused_tokens()}
