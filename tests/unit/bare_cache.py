"""The real `forecache` cache over a real CPU allocator, without an engine around it: seconds, no model."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from serving.sglang_plugin import cache as plugin
from serving.sglang_plugin.cache import ForecacheCache
from serving.sglang_plugin.settings import CacheSettings


class _Pool:
    """Stands where the allocator expects the KV bytes; nothing here moves any."""

    device = "cpu"


class BareCache:
    """Insert, match, lock and evict sequences of token ids on behalf of workflows."""

    def __init__(self, tokens: int, policy: str = "lifecycle", page_size: int = 1, **parameters: Any) -> None:
        plugin.register()
        CacheSettings(policy=policy, parameters=parameters).to_environment()
        self.now = 0.0
        self.allocator = TokenToKVPoolAllocator(tokens, torch.float32, "cpu", _Pool(), need_sort=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            tree_components=(ComponentType.FULL,),
        )
        self.cache = ForecacheCache(params, clock=lambda: self.now)

    def call(self, tokens: list[int], workflow: str | None, agent: str = "agent") -> int:
        """A whole call: match, make room, insert. The tokens that had to be computed."""
        self.now += 1
        key = RadixKey(array("q", tokens), None)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        hit = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        needed = len(tokens) - hit
        short = needed - self.allocator.available_size()
        if short > 0:
            self.cache.evict(EvictParams(num_tokens=short))
        fresh = self.allocator.alloc(needed)
        assert fresh is not None, "no room"
        known = self.cache.path_device_indices(match.last_device_node) if hit else torch.empty(0, dtype=torch.int64)
        value = torch.cat([known, fresh])
        result = self.cache.insert(InsertParams(key=key, value=value, prev_prefix_len=hit))
        self.cache.unlock(lock)
        self.touch(result.last_device_node, workflow, agent)
        return needed

    def match(self, tokens: list[int]) -> Any:
        """The match of a call that goes no further."""
        self.now += 1
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens), None)))

    def room(self) -> int:
        """Tokens that are free or can be made so."""
        return int(self.allocator.available_size() + self.cache.full_evictable_size())

    def flush(self) -> None:
        self.cache.reset()
        self.allocator.clear()

    def touch(self, node_id: int, workflow: str | None, agent: str = "agent") -> None:
        node = self.cache.tree_core.node_by_id(node_id)
        if workflow is None:
            self.cache.ledger.touch_unnamed(node, self.now)
            return
        owner = self.cache.ledger.owner(workflow)
        self.cache.ledger.touch(node, owner, self.cache.ledger.bit(agent), self.now)

    def cached(self, tokens: list[int]) -> int:
        """How many of the tokens are on the device; does not count as a use."""
        matched, _, _ = self.cache.tree_core.match_full_device_prefix(RadixKey(array("q", tokens), None))
        return matched

    def evict(self, tokens: int) -> int:
        return self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted
