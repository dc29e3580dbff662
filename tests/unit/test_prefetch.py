"""Prefetch orders: which are taken, in which order they are served, and what is said of them.

Loads themselves are tests/engine/test_cache_policy.py's; here the cache is a bare one without a host tier, or a
stand-in whose loads are book entries.
"""

from __future__ import annotations

import json
import math
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import sglang  # noqa: F401  # before its parts
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from cache_actor.messages import EnginePlan, PrefetchOrder, Receipt, Told, decode, encode
from cache_actor.policies.base import Combine
from serving.benchmark.bare_cache import BareCache
from serving.sglang_plugin.dump import answer, dump
from serving.sglang_plugin.entries import Entry
from serving.sglang_plugin.ledger import Ledger
from serving.sglang_plugin.prefetch import MAX_ORDERS, MAX_RECEIPTS, Prefetcher
from serving.sglang_plugin.uses import Use


def order(number: int, value: int = 1, workflow: str = "w", max_tokens: int = 1000) -> PrefetchOrder:
    return PrefetchOrder(number, workflow, "agent", value, max_tokens)


def plan(number: int, **fields: Any) -> EnginePlan:
    given: dict[str, Any] = {"time_to_live_s": 5.0, "ends": [], "tables": {}, "prefetches": []}
    return EnginePlan(number, **given | fields)


class HostTier:
    """Stands for a cache with one node a workflow, on the host alone until `load_back`."""

    tiered = True
    load_back_threshold = 10
    page_size = 1

    def __init__(self, free: int = 10_000) -> None:
        self.ledger = Ledger(Combine.SUM, False, lambda node: None)
        self.loaded: list[str] = []
        self.free = free
        self.root = _HostNode(0, None, "", 0)
        self.nodes: list[_HostNode] = []
        self.tree_core = SimpleNamespace(evictable_device_leaves=SimpleNamespace(first=lambda: None))

    def hold(self, workflow: str, tokens: int) -> None:
        node: Any = _HostNode(len(self.nodes), self.root, workflow, tokens)
        self.nodes.append(node)
        self.ledger.touch(node, self.ledger.owner(workflow), Use(0.0, "agent", self.ledger.bit("agent")))

    def free_tokens(self) -> int:
        return self.free

    def load_back(self, node_id: int) -> bool:
        node = self.nodes[node_id]
        node.evicted = False
        self.free -= len(node.key)
        self.loaded.append(node.workflow)
        return True

    def ready_to_load_host_cache(self) -> None: ...


class _HostNode:
    backuped = True
    write_through_pending_id = load_back_pending_id = None

    def __init__(self, number: int, parent: Any, workflow: str, tokens: int) -> None:
        self.id = number
        self.parent = parent
        self.workflow = workflow
        self.key = range(tokens)
        self.evicted = True
        self.entry = Entry()
        self.last_access_time = 0.0


def prefetcher(cache: Any, mode: str = "conservative", reserve: int = 0, tokens_per_s: float = 1000.0) -> Prefetcher:
    return Prefetcher(cache, mode, reserve, tokens_per_s)


def said(prefetcher: Prefetcher) -> list[tuple[int, str]]:
    return [(receipt.order, receipt.status) for receipt in prefetcher.take_receipts()]


class TestBareCache:
    def test_without_a_host_tier_orders_are_rejected_at_once(self) -> None:
        cache = BareCache(64).cache
        report = cache.apply(plan(1, prefetches=[order(7)]))
        assert report.accepted
        assert report.receipts == [Receipt(7, "rejected", 0, "no host tier")]
        assert report.counters["prefetch_orders_rejected"] == 1
        assert not cache.prefetcher.has_work

    def test_receipts_are_given_once(self) -> None:
        cache = BareCache(64).cache
        cache.apply(plan(1, prefetches=[order(7)]))
        assert cache.apply(plan(2)).receipts == []

    def test_a_refused_plans_orders_are_not_taken(self) -> None:
        cache = BareCache(64).cache
        cache.apply(plan(2))
        assert cache.apply(plan(2, prefetches=[order(7)])).receipts == []
        assert cache.apply(plan(3, policy="none such", prefetches=[order(7)])).receipts == []

    @pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
    def test_a_plan_that_would_never_or_already_have_lapsed_is_refused(self, seconds: float) -> None:
        cache = BareCache(64).cache
        report = cache.apply(plan(1, time_to_live_s=seconds, policy="lru"))
        assert not report.accepted
        assert "time_to_live_s" in report.reason
        assert cache.policy.name == "lifecycle"
        assert cache.apply(plan(1)).accepted

    def test_a_dump_fits_into_a_message_whatever_the_names(self) -> None:
        bare = BareCache(2000)
        for i in range(300):
            for j in range(8):
                bare.call([i + 1, i + 2], f"workflow-{j}-" + "é" * 300, "agent-" + "x" * 200)
        told = dump(bare.cache)
        assert told["nodes"]
        assert len(told["nodes"]) + told["left_out"] == 300
        message = Told(1, json.dumps(answer(bare.cache, "dump")))
        assert decode(encode(message)) == message


class TestOrders:
    def test_when_it_is_off_they_are_rejected(self) -> None:
        off = prefetcher(HostTier(), mode="off")
        off.accept([order(1)], 10.0)
        assert off.take_receipts() == [Receipt(1, "rejected", 0, "prefetching is off")]

    def test_those_beyond_the_limit_are_rejected(self) -> None:
        waiting = prefetcher(HostTier())
        waiting.accept([order(number) for number in range(MAX_ORDERS + 2)], 10.0)
        assert said(waiting) == [(MAX_ORDERS, "rejected"), (MAX_ORDERS + 1, "rejected")]

    def test_receipts_that_nobody_takes_are_bounded_and_the_newest_stay(self) -> None:
        off = prefetcher(HostTier(), mode="off")
        off.accept([order(number) for number in range(MAX_RECEIPTS + 5)], 10.0)
        receipts = off.take_receipts()
        assert [receipts[0].order, receipts[-1].order] == [5, MAX_RECEIPTS + 4]
        assert len(receipts) == MAX_RECEIPTS

    def test_they_expire_each_at_its_time(self) -> None:
        waiting = prefetcher(HostTier())
        waiting.accept([order(1)], 10.0)
        waiting.accept([order(2)], 20.0)
        waiting.expire(9.9)
        assert said(waiting) == []
        waiting.expire(10.0)
        assert said(waiting) == [(1, "expired")]
        assert waiting.has_work
        waiting.expire(20.0)
        assert said(waiting) == [(2, "expired")]
        assert not waiting.has_work

    def test_those_of_a_workflow_that_ends_are_dropped(self) -> None:
        waiting = prefetcher(HostTier())
        waiting.accept([order(1, workflow="w"), order(2, workflow="v"), order(3, workflow="w")], 10.0)
        waiting.cancel("w")
        assert said(waiting) == [(1, "expired"), (3, "expired")]
        waiting.expire(10.0)
        assert said(waiting) == [(2, "expired")]


class TestService:
    def test_the_most_valuable_comes_first_and_ties_go_by_number(self) -> None:
        cache = HostTier()
        for workflow in "abcd":
            cache.hold(workflow, 50)
        serving = prefetcher(cache)
        serving.accept([order(4, 1, "a"), order(3, 2, "b")], 10.0)
        serving.accept([order(2, 9, "c"), order(1, 2, "d")], 10.0)
        serving.step(1000)
        assert cache.loaded == ["c", "d", "b", "a"]
        assert {status for _, status in said(serving)} == {"accepted"}
        assert serving.counters["loaded"] == 200

    def test_a_busy_link_is_waited_for_and_what_it_moves_is_saved_up(self) -> None:
        cache = HostTier()
        cache.hold("a", 300)
        cache.hold("b", 20)
        serving = prefetcher(cache)
        serving.accept([order(1, 9, "a"), order(2, 1, "b")], 10.0)
        for _ in range(2):
            serving.step(100)
            assert cache.loaded == []
        serving.step(100)
        assert cache.loaded == ["a"]
        serving.step(100)
        assert cache.loaded == ["a", "b"]

    def test_no_more_than_a_second_is_saved(self) -> None:
        cache = HostTier()
        for workflow in "abc":
            cache.hold(workflow, 600)
        serving = prefetcher(cache, tokens_per_s=1000.0)
        for _ in range(10):
            serving.step(1000)
        serving.accept([order(number, workflow=workflow) for number, workflow in enumerate("abc")], 10.0)
        serving.step(0)
        assert cache.loaded == ["a"]

    def test_the_reserve_stays_free_and_the_order_waits_for_room(self) -> None:
        cache = HostTier(free=100)
        cache.hold("a", 60)
        serving = prefetcher(cache, reserve=95)
        serving.accept([order(1, workflow="a")], 10.0)
        serving.step(1000)
        assert cache.loaded == []
        assert serving.has_work
        cache.free = 155
        serving.step(0)
        assert cache.loaded == ["a"]
        assert cache.free == 95

    @pytest.mark.parametrize("max_tokens", [-1, 0, 9])
    def test_an_order_that_is_too_small_to_load_does_not_hold_up_the_others(self, max_tokens: int) -> None:
        cache = HostTier()
        for workflow in "ab":
            cache.hold(workflow, 50)
        serving = prefetcher(cache)
        serving.accept([order(1, 9, "a", max_tokens), order(2, 1, "b")], 10.0)
        serving.step(1000)
        assert said(serving) == [(1, "rejected"), (2, "accepted")]
        assert cache.loaded == ["b"]

    def test_a_workflow_that_is_not_active_and_a_prefix_that_is_there_cost_nothing(self) -> None:
        cache = HostTier()
        cache.hold("a", 50)
        serving = prefetcher(cache)
        serving.accept([order(1, workflow="nobody"), order(2, workflow="a"), order(3, workflow="a")], 10.0)
        serving.step(50)
        assert said(serving) == [(1, "rejected"), (2, "accepted"), (3, "accepted")]
        assert cache.loaded == ["a"]

    def test_what_is_loaded_is_used_or_wasted_once(self) -> None:
        cache = HostTier()
        for workflow in "ab":
            cache.hold(workflow, 50)
        serving = prefetcher(cache)
        serving.accept([order(1, workflow="a"), order(2, workflow="b")], 10.0)
        serving.step(1000)
        serving.finished({})
        for _ in range(2):
            serving.used(cache.nodes[0])
            serving.lost(cache.nodes[0])
            serving.lost(cache.nodes[1])
            serving.used(cache.nodes[1])
        assert (serving.counters["used"], serving.counters["wasted"]) == (50, 50)


class TestLoads:
    """On SGLang's own host tier, whose loads arrive when `events` says so."""

    def loading(self) -> tuple[BareCache, Any]:
        """A cache that is loading 40 tokens, and the node that they end in."""
        bare = BareCache(100, host_tokens=200)
        bare.call(range(40), "w")
        bare.evict(40)
        bare.cache.apply(plan(1, prefetches=[order(1)]))
        bare.cache.prefetcher.step(1000)
        assert bare.cache.prefetcher.counters["loaded"] == 40
        return bare, bare.cache.tree_core.node_by_id(bare.match(range(40)).last_device_node)

    def test_a_node_is_loading_until_its_load_has_arrived(self) -> None:
        bare, node = self.loading()
        assert bare.cache.prefetcher.is_loading(node)
        bare.events()
        assert not bare.cache.prefetcher.is_loading(node)

    def test_both_parts_of_a_node_that_is_split_under_a_load_are_loading(self) -> None:
        bare, node = self.loading()
        bare.match([*range(15), 99])
        assert len(node.key) == 25
        assert bare.cache.prefetcher.is_loading(node.parent)
        bare.events()
        assert not bare.cache.prefetcher.is_loading(node)
        assert not bare.cache.prefetcher.is_loading(node.parent)

    def test_a_call_waits_for_the_load_of_its_prefix_and_counts_as_late(self) -> None:
        bare, _ = self.loading()
        (ack,) = bare.cache.cache_controller.ack_load_queue
        waited: list[bool] = []
        bare.cache.cache_controller.ack_load_queue[0] = SimpleNamespace(
            **{name: getattr(ack, name) for name in ack._fields} | {"finish_event": _Event(waited)}
        )
        request = SimpleNamespace(kv_hints=None, session=None)
        key = RadixKey(array("q", range(40)), None)
        bare.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        assert waited == [True]
        assert bare.cache.prefetcher.counters["late"] == 40

    def test_a_call_after_the_load_does_not_wait_and_counts_as_a_use(self) -> None:
        bare, node = self.loading()
        bare.events()
        bare.cache.prefetcher.used(node)
        assert (bare.cache.prefetcher.counters["used"], bare.cache.prefetcher.counters["late"]) == (40, 0)


class _Event:
    def __init__(self, waited: list[bool]) -> None:
        self._waited = waited

    def synchronize(self) -> None:
        self._waited.append(True)

    def query(self) -> bool:
        return bool(self._waited)
