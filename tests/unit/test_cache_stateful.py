"""The real cache under random calls, splits, locks, evictions, ends and forecasts: consistent and in order."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from bare_cache import BareCache
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_actor.policies import VALUE_ONE
from serving.sglang_plugin.integrity import check_integrity

WORKFLOWS = st.sampled_from(["w0", "w1", "w2", "w3"])
AGENTS = st.sampled_from(["planner", "coder", "tester"])
TABLES = st.none() | st.dictionaries(AGENTS, st.integers(0, 3 * VALUE_ONE), max_size=3)
# Few symbols, short pieces: prefixes meet, part and are split all the time.
PROMPTS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=24)
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
]


class CacheMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICIES))
    def start(self, policy: tuple[str, dict[str, Any]]) -> None:
        name, parameters = policy
        self.bare = BareCache(64, name, **parameters)
        self.locks: list[Any] = []

    @rule(prompt=PROMPTS, workflow=st.none() | WORKFLOWS, agent=AGENTS)
    def call(self, prompt: list[int], workflow: str | None, agent: str) -> None:
        if self.bare.room() >= len(prompt):
            self.bare.call(prompt, workflow, agent)
            assert self.bare.cached(prompt) == len(prompt)

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

    @rule(policy=st.sampled_from(POLICIES))
    def change_policy(self, policy: tuple[str, dict[str, Any]]) -> None:
        self.bare.cache.set_policy(policy[0], policy[1])

    @rule(seconds=st.floats(0.01, 500))
    def wait(self, seconds: float) -> None:
        self.bare.now += seconds

    @rule()
    def flush(self) -> None:
        if not self.locks:
            self.bare.flush()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "bare"):
            check_integrity(self.bare.cache)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
