"""The victim queue against sorting: whatever happens to keys, members and time, the first is the lowest."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

from cache_actor.policies.base import Key
from serving.benchmark.bare_cache import BareCache
from serving.sglang_plugin.order import _SLACK, VictimQueue

PERIOD_S = 10.0


class Node:
    """A leaf with a key that can be set; `salt` decides the order in which sets iterate over such nodes."""

    def __init__(self, number: int, rank: int = 0, salt: int = 0) -> None:
        self.id = number
        self.rank = rank
        self.salt = salt
        self.entry = SimpleNamespace(device_slot=0)

    def __hash__(self) -> int:
        return hash((self.salt, self.id))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def queue(self) -> VictimQueue:
        return VictimQueue(drifting_key, lambda now: (now // PERIOD_S + 1) * PERIOD_S, lambda: self.now, "device")


def drifting_key(node: Node, now: float) -> Key:
    """Steady within a period; from one to the next any order may turn into any other."""
    return (float((node.rank + node.id * int(now // PERIOD_S)) % 7), float(node.rank))


def is_bounded(queue: VictimQueue) -> bool:
    return len(queue._heap) <= 4 * len(queue) + _SLACK


NODES = st.integers(0, 11)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = self.clock.queue()
        self.nodes = [Node(number) for number in range(12)]
        self.members: set[int] = set()
        self.aside: set[int] = set()

    @rule(number=NODES)
    def add(self, number: int) -> None:
        self.queue.add(self.nodes[number])
        if number not in self.members:
            self.members.add(number)
            self.aside.discard(number)
        assert is_bounded(self.queue)

    @rule(number=NODES)
    def discard(self, number: int) -> None:
        self.queue.discard(self.nodes[number])
        self.members.discard(number)

    @rule(number=NODES, by=st.integers(1, 6))
    def rise_silently(self, number: int, by: int) -> None:
        node = self.nodes[number]
        before = drifting_key(node, self.clock.now)
        node.rank += by
        if drifting_key(node, self.clock.now) < before:  # it has wrapped around
            self.lowered(number)

    @rule(number=NODES)
    def fall(self, number: int) -> None:
        self.nodes[number].rank = 0
        self.lowered(number)

    @rule(number=NODES)
    def lowered(self, number: int) -> None:
        self.queue.lowered([self.nodes[number]])
        if number in self.members:
            self.aside.discard(number)
        assert is_bounded(self.queue)

    @rule()
    def set_aside_the_first(self) -> None:
        first = self.queue.first()
        if first is not None:
            self.queue.set_aside(first)
            self.aside.add(first.id)

    @rule()
    def rebuild(self) -> None:
        self.queue.rebuild()
        assert len(self.queue._heap) == len(self.members - self.aside)

    @rule(seconds=st.floats(0.1, 25))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def the_first_is_the_lowest_of_what_is_not_set_aside(self) -> None:
        assert {node.id for node in self.queue} == self.members
        in_order = self.queue.in_order()
        assert in_order == sorted(in_order, key=lambda node: (drifting_key(node, self.clock.now), node.id))
        expected = next((node for node in in_order if node.id not in self.aside), None)
        assert self.queue.first() is expected
        assert is_bounded(self.queue)


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestQueueMachine = QueueMachine.TestCase


class TestEveryRankChoosesTheSame:
    """Nodes hash by their address, so the sets of two ranks iterate differently."""

    def victims(self, salt: int) -> list[int]:
        clock = Clock()
        queue = clock.queue()
        nodes = {Node(number, salt=salt) for number in range(50)}  # all of one key
        for node in nodes:  # the order in which a ledger's set of nodes would have them
            queue.add(node)
        for node in nodes:
            queue.lowered([node])
        clock.now = PERIOD_S / 2
        gone: list[int] = []
        while (first := queue.first()) is not None:
            gone.append(first.id)
            queue.discard(first)
            if len(gone) == 20:
                queue.rebuild()
        return gone

    def test_salts_do_change_the_order_of_sets(self) -> None:
        orders = {tuple(node.id for node in {Node(number, salt=salt) for number in range(50)}) for salt in range(5)}
        assert len(orders) > 1

    @pytest.mark.parametrize("salt", range(5))
    def test_ties_go_by_the_nodes_number(self, salt: int) -> None:
        assert self.victims(salt) == list(range(50))

    @pytest.mark.parametrize("policy", ["lifecycle", "lookahead", "steps"])
    def test_the_real_cache_keeps_the_same(self, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
        first, *others = [self.history(policy, salt, monkeypatch) for salt in range(3)]
        assert sum(first[-1]) > 0
        assert all(other == first for other in others)

    def history(self, policy: str, salt: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
        """What is cached of each prompt after each of 300 calls, forecasts, ends and evictions of a fixed script."""
        monkeypatch.setattr(UnifiedTreeNode, "__hash__", lambda node: hash((salt, node.id)))
        source = random.Random(5)
        prompts = [[source.randrange(1, 4) for _ in range(source.randrange(4, 24))] for _ in range(20)]
        bare = BareCache(100, policy)
        history: list[list[int]] = []
        for _ in range(300):
            workflow, agent = f"w{source.randrange(6)}", source.choice("abc")
            match source.randrange(5):
                case 0:
                    bare.cache.ledger.set_table(workflow, {agent: source.randrange(3)})
                case 1:
                    bare.cache.end_workflow(workflow)
                case 2:
                    bare.evict(source.randrange(1, 30))
                case _:
                    bare.call(source.choice(prompts), workflow, agent)
            history.append([bare.cached(prompt) for prompt in prompts])
        return history


class TestBounds:
    def test_a_queue_that_nobody_asks_stays_small(self) -> None:
        queue = Clock().queue()
        nodes = [Node(number) for number in range(10)]
        for node in nodes:
            queue.add(node)
        for node, _ in itertools.product(nodes, range(1000)):
            queue.lowered([node])
            assert is_bounded(queue)

    def test_nodes_that_are_gone_are_let_go(self) -> None:
        queue = Clock().queue()
        seen: list[weakref.ref[Node]] = []
        for number in range(1000):
            node = Node(number)
            seen.append(weakref.ref(node))
            queue.add(node)
            queue.discard(node)
        del node
        gc.collect()
        assert sum(one() is not None for one in seen) <= _SLACK + 1

    def test_a_walk_that_shrinks_the_queue_does_not_offer_twice_what_was_set_aside(self) -> None:
        queue = Clock().queue()
        nodes = [Node(number) for number in range(100)]
        assert queue.first() is None
        for rank in (4, 2, 0):  # outdated items far down, which make it rebuild once most members are gone
            for node in nodes:
                node.rank = rank
                queue.add(node)
                queue.lowered([node])
        offered: list[int] = []
        while (victim := queue.first()) is not None:
            queue.set_aside(victim)
            offered.append(victim.id)
            if victim.id % 10:
                queue.discard(victim)
        assert len(offered) == len(set(offered)) == 100
        assert len(queue) == 10

    def test_an_eviction_computes_few_keys(self) -> None:
        """First in a queue of 10,000 costs a handful of keys, not a sort."""
        computed = 0

        def key(node: Any, now: float) -> Key:
            nonlocal computed
            computed += 1
            return (float(node.rank),)

        queue = VictimQueue(key, lambda now: float("inf"), lambda: 0.0, "device")
        source = random.Random(1)
        for number in range(10_000):
            queue.add(Node(number, source.randrange(1000)))
        queue.first()
        computed = 0
        for _ in range(1000):
            queue.discard(queue.first())
        assert computed <= 2000
