"""The real cache, with and without a host tier, under random calls, splits, locks, evictions, load-backs, prefetches,
ends and plans: consistent and in order."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_actor.messages import EnginePlan, PrefetchOrder
from cache_actor.policies import VALUE_ONE
from serving.benchmark.bare_cache import BareCache, NoRoom
from serving.sglang_plugin.integrity import check_integrity

WORKFLOWS = st.sampled_from(["w0", "w1", "w2", "w3"])
AGENTS = st.sampled_from(["planner", "coder", "tester"])
TABLES = st.none() | st.dictionaries(AGENTS, st.integers(0, 3 * VALUE_ONE), max_size=3)
# Few trunks, few symbols: prefixes meet, part, are split, and come back after they were evicted.
TRUNKS = [[1] * 20, [2, 3] * 10, [1, 1, 3, 2] * 5]
PROMPTS = st.builds(
    lambda trunk, length, end: [*trunk[:length], *end] or [1],
    st.sampled_from(TRUNKS),
    st.sampled_from([0, 8, 12, 20]),
    st.lists(st.sampled_from([1, 2, 3]), max_size=4),
)
POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("lru", {}),
    ("lifecycle", {}),
    ("lifecycle", {"strict": True}),
    ("lookahead", {}),
    ("lookahead", {"strict": True}),
    ("steps", {}),
    ("survival", {"form": "additive"}),
    ("survival", {"form": "multiplicative"}),
    ("ttl", {}),
    ("reuse", {"samples": 2}),
    ("reuse", {"piecewise": False}),
    ("reuse", {"features": "uses", "residence": 0.2, "strict": True}),
]


class CacheMachine(RuleBasedStateMachine):
    host_tokens = 0

    @initialize(policy=st.sampled_from(POLICIES))
    def start(self, policy: tuple[str, dict[str, Any]]) -> None:
        name, parameters = policy
        self.bare = BareCache(64, name, host_tokens=self.host_tokens, **parameters)
        self.bare.cache.load_back_threshold = 2  # the smallest load, in tokens; SGLang's 10 is most of a prompt here
        self.locks: list[Any] = []
        self.plans = 0

    @rule(calls=st.lists(st.tuples(PROMPTS, st.none() | WORKFLOWS, AGENTS), min_size=1, max_size=8))
    def calls(self, calls: list[tuple[list[int], str | None, str]]) -> None:
        for prompt, workflow, agent in calls:
            with contextlib.suppress(NoRoom):
                self.bare.call(prompt, workflow, agent)
                assert self.bare.cached(prompt) == len(prompt)
            check_integrity(self.bare.cache)

    @rule(prompt=PROMPTS, workflow=WORKFLOWS, agent=AGENTS)
    def match(self, prompt: list[int], workflow: str, agent: str) -> None:
        self.bare.touch(self.bare.match(prompt).best_match_node, workflow, agent)

    @rule(prompt=PROMPTS)
    def lock(self, prompt: list[int]) -> None:
        if len(self.locks) < 3:
            self.locks.append(self.bare.cache.lock(self.bare.match(prompt).last_device_node))

    @precondition(lambda self: self.locks)
    @rule()
    def unlock(self) -> None:
        self.bare.cache.unlock(self.locks.pop(0))

    @rule(tokens=st.integers(1, 40))
    def evict(self, tokens: int) -> None:
        evictable = self.bare.cache.full_evictable_size()
        assert self.bare.evict(tokens) >= min(tokens, evictable)

    @rule(workflow=WORKFLOWS)
    def end(self, workflow: str) -> None:
        self.bare.cache.end_workflow(workflow)

    @rule(workflow=WORKFLOWS, table=TABLES)
    def forecast(self, workflow: str, table: dict[str, int] | None) -> None:
        self.bare.cache.ledger.set_table(workflow, table)

    @rule(
        tables=st.dictionaries(WORKFLOWS, TABLES, max_size=2),
        ends=st.lists(WORKFLOWS, max_size=1),
        orders=st.lists(st.tuples(WORKFLOWS, AGENTS, st.integers(0, VALUE_ONE), st.integers(1, 30)), max_size=3),
    )
    def plan(
        self, tables: dict[str, dict[str, int] | None], ends: list[str], orders: list[tuple[str, str, int, int]]
    ) -> None:
        self.plans += 1
        prefetches = [PrefetchOrder(number, *order) for number, order in enumerate(orders)]
        assert self.bare.cache.apply(EnginePlan(self.plans, 300.0, ends, tables, prefetches)).accepted

    @rule(
        workflow=WORKFLOWS, agents=st.lists(AGENTS, max_size=3), evicted=st.integers(0, 60), budget=st.integers(10, 90)
    )
    def prefetch(self, workflow: str, agents: list[str], evicted: int, budget: int) -> None:
        self.evict(evicted)
        self.plan({}, [], [(workflow, agent, 1, budget) for agent in agents])
        self.bare.cache.prefetcher.step(budget)
        assert self.bare.cache.counters["active_evictions_by_prefetch"] == 0

    @rule()
    def events(self) -> None:
        self.bare.events()

    @rule(policy=st.sampled_from(POLICIES))
    def change_policy(self, policy: tuple[str, dict[str, Any]]) -> None:
        self.bare.cache.set_policy(policy[0], policy[1])

    @rule(seconds=st.sampled_from([0.1, 1.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.bare.now += seconds
        self.bare.cache.tick(self.bare.now)

    @rule()
    def flush(self) -> None:
        if not self.locks:
            self.bare.flush()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "bare"):
            check_integrity(self.bare.cache)


class TieredCacheMachine(CacheMachine):
    host_tokens = 96

    @rule(prompt=PROMPTS, workflow=st.none() | WORKFLOWS)
    def fetch(self, prompt: list[int], workflow: str | None) -> None:
        """A prefix comes from storage, and mostly the call that it comes for."""
        self.bare.fetch(prompt)
        check_integrity(self.bare.cache)
        if workflow is not None:
            with contextlib.suppress(NoRoom):
                self.bare.call(prompt, workflow)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TieredCacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestCacheMachine = CacheMachine.TestCase
TestTieredCacheMachine = TieredCacheMachine.TestCase
