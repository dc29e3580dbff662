"""The real `forecache` cache over real CPU allocators, without an engine around it: no model, hardly any KV bytes.

With a host tier it is SGLang's HiCache with its controller and both pools, whose rows are two numbers wide.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_context

from serving.sglang_plugin import cache as plugin
from serving.sglang_plugin import platform
from serving.sglang_plugin.cache import ForecacheCache
from serving.sglang_plugin.settings import CacheSettings


class NoRoom(Exception):
    """The call needs more than what is free or can be evicted."""


def make_cache(
    device_tokens: int,
    host_tokens: int,
    settings: CacheSettings,
    clock: Callable[[], float],
    page_size: int = 1,
    cache_class: type[ForecacheCache] = ForecacheCache,
) -> ForecacheCache:
    """A cache of so many tokens by tier; `host_tokens` 0 leaves out the host tier."""
    plugin.register()
    settings.to_environment()
    pool = MHATokenToKVPool(
        device_tokens, page_size, torch.float16, 1, 1, 1, "cpu", enable_memory_saver=False, enable_alt_stream=False
    )
    allocator = TokenToKVPoolAllocator(device_tokens, torch.float16, "cpu", pool, need_sort=False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=allocator,
        page_size=page_size,
        tree_components=(ComponentType.FULL,),
    )
    cache = cache_class(params, clock=clock)
    if host_tokens:
        platform.install()
        with get_context().override_server_args(
            device="cpu",
            page_size=page_size,
            hicache_ratio=host_tokens / device_tokens,
            hicache_io_backend="direct",
            hicache_mem_layout="layer_first",
            hicache_write_policy="write_through",
        ) as server_args:
            cache.init_hicache(server_args, params)
    return cache


class BareCache:
    """Insert, match, lock, load and evict sequences of token ids on behalf of workflows."""

    def __init__(
        self, tokens: int, policy: str = "lifecycle", page_size: int = 1, host_tokens: int = 0, **parameters: Any
    ) -> None:
        self.now = 0.0
        settings = CacheSettings(policy=policy, parameters=parameters, prefetch_reserve_tokens=0)
        self.cache = make_cache(tokens, host_tokens, settings, lambda: self.now, page_size)
        self.allocator = self.cache.token_to_kv_pool_allocator

    def call(self, tokens: Sequence[int], workflow: str | None, agent: str = "agent") -> int:
        """A whole call: match, load back, make room, insert. The tokens that had to be computed.

        Raises:
            NoRoom: too much is locked.
        """
        self.now += 1
        key = _key(tokens)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        node, hit = match.last_device_node, match.device_prefix_len
        if match.host_hit_length and self.cache.load_back(match.best_match_node):
            self.cache.ready_to_load_host_cache()
            node, hit = match.best_match_node, hit + match.host_hit_length
        lock = self.cache.lock(node)
        try:
            needed = len(tokens) - int(hit)
            short = needed - self.allocator.available_size()
            if short > 0:
                self.cache.evict(EvictParams(num_tokens=short))
            fresh = self.allocator.alloc(needed)
            if fresh is None:
                raise NoRoom(f"{needed} tokens are needed, {self.allocator.available_size()} are free")
            known = self.cache.path_device_indices(node) if hit else torch.empty(0, dtype=torch.int64)
            result = self.cache.insert(InsertParams(key=key, value=torch.cat([known, fresh]), prev_prefix_len=hit))
        finally:
            self.cache.unlock(lock)
        self.touch(result.last_device_node, workflow, agent)
        self.events()
        return needed

    def fetch(self, tokens: Sequence[int]) -> int:
        """What SGLang does when a prefix has come from storage; how many tokens of it are new to the host."""
        cache, key = self.cache, _key(tokens)
        rows = cache.cache_controller.mem_pool_host.alloc(len(tokens))
        if rows is None:
            return 0
        result = cache.tree_core.insert_host(cache.tree_core.root_node.id, key, rows, [""] * len(tokens))
        cache._apply_cache_actions(result.cache_actions)
        known = len(tokens) if result.host_insert_dropped else result.prefix_len
        cache.cache_controller.mem_pool_host.free(rows[:known])
        return int(len(tokens) - known)

    def events(self) -> None:
        """What SGLang does once a step: backups and loads that have arrived are taken note of."""
        if self.cache.tiered:
            self.cache.check_hicache_events()

    def match(self, tokens: Sequence[int]) -> Any:
        """The match of a call that goes no further."""
        self.now += 1
        return self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))

    def room(self) -> int:
        """Tokens that are free or can be made so."""
        return int(self.allocator.available_size() + self.cache.full_evictable_size())

    def flush(self) -> None:
        self.events()
        self.cache.reset()
        self.allocator.clear()

    def touch(self, node_id: int, workflow: str | None, agent: str = "agent") -> None:
        callers = self.cache.callers
        caller = callers.unnamed() if workflow is None else callers.named(workflow, agent)
        callers.touch(self.cache.tree_core.node_by_id(node_id), caller)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many of the tokens are on the device; does not count as a use."""
        matched: int = self.cache.tree_core.match_full_device_prefix(_key(tokens))[0]
        return matched

    def evict(self, tokens: int) -> int:
        return int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)


def _key(tokens: Sequence[int]) -> RadixKey:
    return RadixKey(array("q", tokens), None)
