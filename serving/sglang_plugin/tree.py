"""SGLang's prefix tree with ledger entries on its nodes, and its victims in the policy's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore, UnifiedTreeNode

from serving.sglang_plugin.entries import Entry

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache

FULL = ComponentType.FULL


class ForecacheTreeCore(UnifiedTreeCore):
    """SGLang's Python tree core whose nodes have ledger entries and whose leaf sets are victim queues."""

    @property
    def _cache(self) -> ForecacheCache:
        cache: ForecacheCache = self.components_by_type[FULL].cache
        return cache

    def reset(self) -> None:
        super().reset()
        cache = self._cache
        cache.emptied()
        self.evictable_device_leaves = cache.victims.new_queue("device")
        self.evictable_host_leaves = cache.victims.new_queue("host")

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = super()._new_node(priority)
        node.entry = Entry()
        return node

    def _add_new_node(self, *args: Any, **kwargs: Any) -> UnifiedTreeNode:
        node = super()._add_new_node(*args, **kwargs)
        cache = self._cache
        if cache.learning is not None:
            cache.learning.computed(len(node.key))
        cache.returns.came(node)
        return node

    def insert_host(self, *args: Any, **kwargs: Any) -> Any:
        """Pages have come from the storage backend: new to the host, computed by nobody."""
        first = UnifiedTreeNode.counter
        result = super().insert_host(*args, **kwargs)
        node = self._node_arena.get(result.inserted_host_node)
        if node is not None and node.id >= first and not node.children:  # not the upper half of one that was split
            cache = self._cache
            if cache.learning is not None:
                cache.learning.fetched(len(node.key))
            cache.returns.came(node, computed=False)
        return result

    def _unevict_node_on_insert(self, node: UnifiedTreeNode, *args: Any, **kwargs: Any) -> None:
        super()._unevict_node_on_insert(node, *args, **kwargs)
        if (learning := self._cache.learning) is not None:
            learning.computed(len(node.key))

    def _unregister_node(self, node: UnifiedTreeNode) -> None:
        self._cache.returns.left(node)
        super()._unregister_node(node)


class ForecacheFullComponent(FullComponent):
    """SGLang's FULL component, with victims in the policy's order from queues that are never rebuilt for it."""

    def redistribute_on_node_split(self, new_parent: UnifiedTreeNode, child: UnifiedTreeNode) -> None:
        super().redistribute_on_node_split(new_parent, child)
        self.cache.ledger.split(new_parent, child)
        if self.cache.learning is not None:
            self.cache.learning.split(new_parent, child)
        self.cache.prefetcher.split(new_parent, child)

    def _evict_device_start(self, request_cnt: int) -> None:
        self._evict_device_request_cnt = request_cnt
        self._passed_over: list[UnifiedTreeNode] = []

    def _evict_device_next_node(
        self, tracker: dict[ComponentType, int], device_frees: Any, host_frees: Any, cache_actions: Any
    ) -> int | None:
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        queue, victims = self.tree_core.evictable_device_leaves, self.cache.victims
        victim = victims.next(queue)
        if victim is None:
            return None
        victims.cut(victim, "device", victims.wanted - tracker[self.component_type])
        # SGLang may fail to evict it (a write-back without room); it must not be offered twice in one walk.
        queue.set_aside(victim)
        self._passed_over.append(victim)
        victims.count("device", victim)
        node_id: int = victim.id
        return node_id

    def _evict_device_end(self) -> None:
        queue = self.tree_core.evictable_device_leaves
        queue.lowered(self._passed_over)
        self._passed_over = []

    def drive_host_eviction(
        self,
        num_tokens: int,
        tracker: dict[ComponentType, int],
        device_frees: dict[ComponentType, list[torch.Tensor]],
        host_frees: dict[ComponentType, list[torch.Tensor]],
        cache_actions: list[Any],
    ) -> None:
        queue, victims = self.tree_core.evictable_host_leaves, self.cache.victims
        while tracker[self.component_type] < num_tokens and (victim := victims.next(queue)) is not None:
            victims.cut(victim, "host", num_tokens - tracker[self.component_type])
            victims.count("host", victim)
            self.tree_core._evict_host_leaf(victim, tracker, device_frees, host_frees, cache_actions=cache_actions)
