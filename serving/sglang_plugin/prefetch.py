"""Conservative prefetcher: brings what forecasts say is needed next from the host tier to the device, beside the work.

It loads only into space that is free or that retired nodes hold, keeps one prefill chunk free, loads no more than the
link moves beside the steps, and never before a demand load: the engine must be idle or decoding, with nobody waiting.
Only the aggressive mode, which exists for the ablation, makes room by evicting what is in use.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from cache_actor.messages import PrefetchOrder, Receipt

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache
    from serving.sglang_plugin.entries import Owner

MAX_ORDERS = 256
MAX_RECEIPTS = 1024
MODES = ("off", "conservative", "aggressive")


@dataclass(slots=True)
class _Pending:
    order: PrefetchOrder
    expires: float


@dataclass(slots=True)
class _Load:
    started: float
    tokens: int
    nodes: set[Any]


class Prefetcher:
    """Orders that wait, loads under way, and what became of what was loaded.

    Args:
        cache: the cache that is loaded into.
        mode: `off`, `conservative` or `aggressive`.
        reserve_tokens: kept free for the next prefill.
        tokens_per_s: what the link from the host is taken to move until loads have been measured.
    """

    def __init__(self, cache: ForecacheCache, mode: str, reserve_tokens: int, tokens_per_s: float) -> None:
        self.mode = mode
        self.reserve_tokens = reserve_tokens
        self.tokens_per_s = tokens_per_s
        self.counters: Counter[str] = Counter()
        self.receipts: list[Receipt] = []
        self.at_work = False
        self.timer = time.monotonic  # a model of an engine has its own
        self._cache = cache
        self._orders: list[_Pending] = []
        self._saved = 0
        self._most_saved = int(tokens_per_s)
        self._loads: dict[int, _Load] = {}  # by the id of the node that SGLang takes as the load's anchor
        self._loading: set[Any] = set()  # SGLang marks nodes under a load with `write_back` only
        self._unused: dict[Any, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._orders)

    def accept(self, orders: list[PrefetchOrder], expires: float) -> None:
        """Takes orders; those that cannot be are answered at once. `expires` on the cache's clock, in seconds."""
        for order in orders:
            if self.mode == "off" or not self._cache.tiered:
                self._answer(order, "rejected", 0, "prefetching is off" if self.mode == "off" else "no host tier")
            elif len(self._orders) >= MAX_ORDERS:
                self._answer(order, "rejected", 0, f"{MAX_ORDERS} orders are waiting")
            else:
                self._orders.append(_Pending(order, expires))
        self._orders.sort(key=lambda pending: (-pending.order.value, pending.order.order))

    def cancel(self, workflow: str) -> None:
        """The workflow is over: its orders that have not begun are dropped."""
        for pending in [one for one in self._orders if one.order.workflow == workflow]:
            self._orders.remove(pending)
            self._answer(pending.order, "expired", 0, "its workflow has ended")

    def expire(self, now: float) -> None:
        for pending in [one for one in self._orders if one.expires <= now]:
            self._orders.remove(pending)
            self._answer(pending.order, "expired", 0, "its time to live was over")

    def step(self, budget: int) -> None:
        """Serves orders, best first; called between two steps of the engine.

        Args:
            budget: tokens that the link moves since the last call. What is not used is saved, up to a second's worth,
                so that a prefix comes in one piece and not in crumbs.
        """
        self._saved = min(self._saved + budget, self._most_saved)
        while self._orders:
            order = self._orders[0].order
            loaded, status, reason = self._load(order)
            if status == "deferred":  # no room, or the link is busy; the others would have to wait, too
                self.counters["deferred_steps"] += 1
                return
            self._orders.pop(0)
            self._answer(order, status, loaded, reason)
            self._saved -= loaded

    def finished(self, anchors_left: Any) -> None:
        """Loads whose anchor is not under way any more have arrived: the link's speed is learned from them."""
        for anchor in [one for one in self._loads if one not in anchors_left]:
            load = self._loads.pop(anchor)
            self._loading -= load.nodes
            seconds = max(self.timer() - load.started, 1e-4)
            self.tokens_per_s += 0.2 * (load.tokens / seconds - self.tokens_per_s)

    def is_loading(self, node: Any) -> bool:
        """Whether one of our loads fills a node of this path."""
        while self._loading and node.parent is not None:
            if node in self._loading:
                return True
            node = node.parent
        return False

    def used(self, node: Any) -> None:
        """A call has come for the path of `node`."""
        while self._unused and node.parent is not None:
            tokens = self._unused.pop(node, 0)
            if tokens:
                self.counters["late" if node in self._loading else "used"] += tokens
            node = node.parent

    def lost(self, node: Any) -> None:
        """`node` leaves the device."""
        if self._unused and (tokens := self._unused.pop(node, 0)):
            self.counters["wasted"] += tokens

    def split(self, upper: Any, lower: Any) -> None:
        if self._unused and lower in self._unused:
            self._unused[lower] = len(lower.key)
            self._unused[upper] = len(upper.key)
        if self._loading and lower in self._loading:
            self._loading.add(upper)
            for load in self._loads.values():
                if lower in load.nodes:
                    load.nodes.add(upper)

    def unused_tokens(self) -> int:
        """Tokens that were loaded and are still waiting for their call."""
        return sum(self._unused.values())

    def clear(self) -> None:
        self._loads.clear()
        self._loading.clear()
        self._unused.clear()

    def take_receipts(self) -> list[Receipt]:
        receipts, self.receipts = self.receipts, []
        return receipts

    def _load(self, order: PrefetchOrder) -> tuple[int, str, str]:
        owner = self._cache.ledger.owners.get(order.workflow)
        if owner is None:
            return 0, "rejected", f"there is no active workflow {order.workflow!r}"
        target = self._target(owner, order.agent)
        if target is None:
            return 0, "accepted", "nothing of it is on the host alone"
        missing = _missing(target)
        wanted = sum(len(node.key) for node in missing)
        smallest = self._cache.load_back_threshold
        at_most = min(wanted, order.max_tokens, self._most_saved)
        if at_most < smallest:  # deferred, it would hold up the others until it expires
            return 0, "rejected", f"{at_most} tokens are too few to load; the least is {smallest}"
        if self._saved < at_most:
            return 0, "deferred", "the link is busy"
        fitting = self._fitting(missing, min(self._make_room(at_most), at_most))
        tokens = sum(len(node.key) for node in fitting)
        if tokens < smallest:
            return 0, "deferred", "no room"
        anchor = fitting[-1]
        self.at_work = True
        try:
            started = self._cache.load_back(anchor.id)
        finally:
            self.at_work = False
        if not started:
            return 0, "rejected", "SGLang refused the load"
        self._cache.ready_to_load_host_cache()
        self._loads[anchor.id] = _Load(self.timer(), tokens, set(fitting))
        self._loading.update(fitting)
        self._unused.update((node, len(node.key)) for node in fitting)
        self.counters["loaded"] += tokens
        return tokens, "accepted" if tokens == wanted else "clipped", ""

    def _fitting(self, path: list[Any], limit: int) -> list[Any]:
        """The beginning of `path` that has at most `limit` tokens; its last node is split if need be."""
        fitting: list[Any] = []
        for node in path:
            if len(node.key) <= limit:
                fitting.append(node)
                limit -= len(node.key)
                continue
            part = limit // self._cache.page_size * self._cache.page_size
            if part >= self._cache.load_back_threshold and not is_moving(node):
                fitting.append(self._cache.split_node(node, part))
            break
        return fitting

    def _target(self, owner: Owner, agent: str) -> Any | None:
        """The deepest node of the agent's latest path that is on the host alone."""
        bit = self._cache.ledger.bit(agent)
        owned: list[Any] = list(owner.nodes())
        nodes = [node for node in owned if node.entry.owners[owner] & bit]
        absent = [node for node in nodes if node.evicted and node.backuped]
        # The ids make the choice the same on every rank.
        return max(absent, key=lambda node: (node.entry.use.at, _depth(node), node.id), default=None)

    def _make_room(self, tokens: int) -> int:
        """Tokens that may be loaded, after retired nodes have made way for them."""
        cache = self._cache
        if self.mode == "aggressive":
            return tokens
        wanted = tokens + self.reserve_tokens
        while cache.free_tokens() < wanted:
            victim = cache.tree_core.evictable_device_leaves.first()
            if victim is None or not cache.ledger.is_retired(victim.entry):
                break
            self.at_work = True
            try:
                cache.evict(EvictParams(num_tokens=1))
            finally:
                self.at_work = False
        return max(0, cache.free_tokens() - self.reserve_tokens)

    def _answer(self, order: PrefetchOrder, status: str, tokens: int, reason: str) -> None:
        self.counters[f"orders_{status}"] += 1
        self.receipts.append(Receipt(order.order, status, tokens, reason))
        del self.receipts[:-MAX_RECEIPTS]


def _missing(node: Any) -> list[Any]:
    """The part of the path to `node` that is on the host alone, from the root down."""
    path: list[Any] = []
    while node.parent is not None and node.evicted:
        path.append(node)
        node = node.parent
    return path[::-1]


def is_moving(node: Any) -> bool:
    """Whether SGLang copies the node to or from the host at the moment."""
    return node.write_through_pending_id is not None or node.load_back_pending_id is not None


def _depth(node: Any) -> int:
    depth = 0
    while node.parent is not None:
        depth += 1
        node = node.parent
    return depth
