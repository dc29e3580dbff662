"""Shadows hold what their policy would keep, and the engine follows the policy that computes least."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.policies import make_policy
from cache_actor.policies.reuse import Reuse
from cache_actor.policies.reuse_table import Situation
from serving.sglang_plugin.reuse import Learning
from serving.sglang_plugin.shadows import ALTERNATIVES, HYSTERESIS, MAX_CALLS, Shadow, Shadows

CAPACITY = 256 * 8


def prompt(number: int, tokens: int) -> list[int]:
    return [number * 10_000 + place for place in range(tokens)]


class Traffic:
    """Calls one after another, through all shadows."""

    def __init__(self, **parameters: Any) -> None:
        self.shadows = Shadows(Reuse(**parameters), CAPACITY, 100)
        self.calls = 0
        self.changes: list[str] = []

    def call(self, tokens: list[int], workflow: str | None = "w", agent: str = "a", output: int = 0) -> None:
        self.calls += 1
        rid = f"r{self.calls}"
        self.shadows.called(rid, workflow, agent, tokens, None, float(self.calls))
        if self.shadows.finished(rid, [*tokens, *prompt(-self.calls, output)], float(self.calls)):
            self.changes.append(self.shadows.followed.name)


class TestShadow:
    @given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 8))
    def test_under_lru_blocks_leave_as_they_were_used(self, calls: list[int], capacity: int) -> None:
        shadow = Shadow(make_policy("lru"), capacity, 1, 10)
        model: OrderedDict[int, None] = OrderedDict()
        for now, number in enumerate(calls):
            before = shadow.computed
            running = shadow.call("w", "a", [number], float(now))
            shadow.finish(running, [], float(now))
            assert (shadow.computed > before) == (number not in model)
            model[number] = None
            model.move_to_end(number)
            if len(model) > capacity:
                model.popitem(last=False)

    def test_it_begins_with_what_the_engine_has_learned_and_learns_apart(self) -> None:
        engine = Learning(Reuse(), lambda tier: CAPACITY)
        engine.tiers["host"].table.learn(Situation("private", 1), 1.0)
        shadow = Shadow(Reuse(), CAPACITY, 8, 10, (engine, "host"))
        assert shadow._learning is not None
        assert shadow._learning.state()["tiers"]["device"] == engine.state()["tiers"]["host"]
        shadow._learning.tiers["device"].table.learn(Situation("private", 1), 0.0)
        assert {mean for _, _, mean in engine.state()["tiers"]["host"]} == {1.0}

    @pytest.mark.parametrize("policy", ["reuse", *ALTERNATIVES])
    def test_it_holds_no_more_than_its_capacity_and_nothing_stays_locked(self, policy: str) -> None:
        rng = random.Random(1)
        shadow = Shadow(make_policy(policy), 40, 1, 4)
        running: list[Any] = []
        for now in range(500):
            workflow = rng.choice(["u", "v", "w", "x", "y", None])
            running.append(shadow.call(workflow, "a", prompt(rng.randrange(8), rng.randrange(1, 9)), float(now)))
            if len(running) > 2:
                done = running.pop(rng.randrange(3))
                shadow.finish(done, prompt(100 + now, rng.randrange(3)), float(now))
            assert shadow._used <= 40
            if now % 20 == 0:
                shadow.end(rng.choice(["u", "v", "w"]))
        for done in running:
            shadow.finish(done, [], 500.0)
        blocks = list(shadow._root.children.values())
        while blocks:
            block = blocks.pop()
            assert block.locks == 0
            assert (block in shadow._queue) == (not block.children)
            blocks += block.children.values()

    def test_a_call_that_needs_more_than_there_is_is_served(self) -> None:
        shadow = Shadow(make_policy("lru"), 4, 1, 4)
        running = shadow.call("w", "a", prompt(1, 10), 0.0)
        shadow.finish(running, prompt(2, 3), 0.0)
        shadow.finish(shadow.call("w", "a", prompt(3, 1), 1.0), [], 1.0)
        assert shadow._used <= 4


class TestChoice:
    def test_at_first_and_at_ties_the_policy_itself(self) -> None:
        traffic = Traffic()
        for number in range(100):
            traffic.call(prompt(number, 64))
        assert traffic.shadows.followed.name == "reuse"
        assert traffic.shadows.misses() == dict.fromkeys(("reuse", *ALTERNATIVES), 1.0)

    def test_another_policy_must_be_clearly_better_and_the_first_comes_back_likewise(self) -> None:
        traffic = Traffic()
        for number in range(100):
            traffic.call(prompt(number, 64))
        shadows = traffic.shadows.shadows
        shadows["lru"].computed *= 1 - HYSTERESIS / 2
        traffic.call(prompt(1000, 4))
        assert traffic.changes == []
        shadows["lru"].computed *= 0.9
        traffic.call(prompt(1001, 4))
        assert traffic.changes == ["lru"]
        shadows["reuse"].computed = 0.5 * shadows["lru"].computed
        traffic.call(prompt(1002, 4))
        assert traffic.changes == ["lru", "reuse"]

    def test_too_little_traffic_is_no_evidence(self) -> None:
        traffic = Traffic()
        traffic.call(prompt(1, 64))
        traffic.shadows.shadows["lru"].computed = 0.0
        traffic.call(prompt(2, 64))
        assert traffic.changes == []

    def test_where_an_alternative_is_better_it_is_found(self) -> None:
        """With no feature to learn from, the guarded policy is `lifecycle`; forecasts tell `lookahead` what to keep."""
        traffic = Traffic(features="")
        for number in range(600):
            traffic.shadows.set_table("w", {"again": 1 << 20})
            traffic.call(prompt(number, 64), "w", "once")
            if number % 50 == 0:
                traffic.call(prompt(9_999_999, 512), "w", "again")
        misses = traffic.shadows.misses()
        assert misses["lookahead"] < misses["lru"]
        assert traffic.shadows.followed.name == "lookahead"


class TestBounds:
    def test_calls_that_never_end_are_given_up(self) -> None:
        traffic = Traffic()
        for number in range(MAX_CALLS + 50):
            traffic.shadows.called(f"r{number}", "w", "a", prompt(1, 16), None, 0.0)
        assert len(traffic.shadows._running) == MAX_CALLS
        assert not traffic.shadows.finished("r0", prompt(1, 16), 1.0)

    def test_prefixes_of_other_spaces_are_not_shared(self) -> None:
        traffic = Traffic()
        for number, space in enumerate(["adapter", "adapter", "other"]):
            traffic.shadows.called(f"r{number}", "w", "a", prompt(1, 16), space, 0.0)
            traffic.shadows.finished(f"r{number}", prompt(1, 16), 0.0)
        assert traffic.shadows.shadows["lru"].computed == pytest.approx(32, rel=0.05)
