"""Anchors that a new engine computes before it gets calls."""

from __future__ import annotations

import pytest
from coordinator_reports import MadeUpEngine, began, cache_report
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.cluster import Cluster
from cache_actor.messages import Anchor
from cache_actor.planner import Planner, PlannerConfig
from cache_actor.runtime import Draft, Runtime
from cache_actor.runtime_policies import make_runtime_policies
from cache_actor.runtime_policies.anchor_warm_up import AGENTS_KEPT, HALF_LIFE_S, HOTTEST, AnchorWarmUp, Heat

POOL = {"free": 100, "evictable": 200, "locked": 100}


class Office:
    """A coordinator's parts, and one engine that is old and has told of its calls."""

    def __init__(self, calls: dict[str, int], tokens: int = 10, pools: dict[str, int] | None = None) -> None:
        self.cluster = Cluster()
        self.policy = AnchorWarmUp()
        self.old = MadeUpEngine("old", calm=True)
        events = [began(f"w{number}", agent) for agent, count in calls.items() for number in range(count)]
        anchors = [Anchor(agent, b"1234" * tokens) for agent in calls]
        state = self.cluster.hear(self.old.report(*events, anchors=anchors), 1.0)
        if pools:
            self.cluster.hear(self.old.report(cache=[cache_report(pools=pools)]), 1.5)
        for event in events:
            self.policy.observe(event, state)

    def new_engine_is_told(self) -> list[str]:
        engine = self.cluster.hear(MadeUpEngine("new", calm=True).report(), 2.0)
        draft = Draft()
        self.policy.act([], engine, self.cluster, draft)
        return draft.warm_ups


class TestNewEngine:
    def test_it_is_told_the_hottest_first(self) -> None:
        assert Office({"critic": 1, "coder": 5, "tester": 3}).new_engine_is_told() == ["coder", "tester", "critic"]

    def test_only_at_its_first_report(self) -> None:
        office = Office({"coder": 5})
        draft = Draft()
        office.policy.act([], office.cluster.hear(office.old.report(), 2.0), office.cluster, draft)
        assert draft.warm_ups == []

    def test_no_more_than_so_many(self) -> None:
        assert len(Office({f"agent{number}": 1 for number in range(3 * HOTTEST)}).new_engine_is_told()) == HOTTEST

    def test_no_more_than_half_of_a_pool_like_the_others(self) -> None:
        office = Office({"coder": 5, "tester": 3, "critic": 1}, tokens=90, pools=POOL)
        assert office.new_engine_is_told() == ["coder", "tester"]

    def test_agents_whose_anchor_nobody_has_found_are_left_out(self) -> None:
        office = Office({"coder": 5, "tester": 3})
        del office.cluster.anchors["coder"]
        assert office.new_engine_is_told() == ["tester"]

    def test_the_plan_carries_their_anchors_though_the_engine_has_no_workflow(self) -> None:
        cluster = Cluster()
        old = MadeUpEngine("old", calm=True)
        planner = Planner(cluster, runtime := Runtime(make_runtime_policies(["anchor-warm-up"])), PlannerConfig())
        report = old.report(began("w", "coder"), anchors=[Anchor("coder", b"1234")])
        runtime.observe(report.events, [], cluster.hear(report, 1.0))
        plan = planner.plan(cluster.hear(MadeUpEngine("new", calm=True).report(), 2.0), 2.0)
        assert plan is not None
        assert plan.warm_ups == [Anchor("coder", b"1234")]


class TestHeat:
    def test_calls_of_long_ago_count_less(self) -> None:
        heat = Heat()
        for _ in range(4):
            heat.called("yesterday", 0.0)
        now = 3 * HALF_LIFE_S
        heat.called("today", now)
        assert heat.hottest(2, now) == ["today", "yesterday"]

    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 100)), min_size=1, max_size=50))
    def test_without_time_it_is_the_order_of_counts(self, calls: list[tuple[str, float]]) -> None:
        heat = Heat()
        for agent, _ in calls:
            heat.called(agent, 1.0)
        agents = [agent for agent, _ in calls]
        counts = [agents.count(agent) for agent in heat.hottest(10, 1.0)]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == len(calls)

    def test_it_is_bounded_and_keeps_the_hottest(self) -> None:
        heat = Heat()
        heat.called("coder", 1.0)
        heat.called("coder", 1.0)
        for number in range(2 * AGENTS_KEPT):
            heat.called(f"agent{number}", 1.0)
        assert len(heat.hottest(10 * AGENTS_KEPT, 1.0)) == AGENTS_KEPT
        assert heat.hottest(1, 1.0) == ["coder"]


@pytest.mark.parametrize("at", [(5.0, 1.0), (1.0, 5.0)])
def test_reports_that_come_late_are_no_trouble(at: tuple[float, float]) -> None:
    heat = Heat()
    for when in at:
        heat.called("coder", when)
    assert heat.hottest(1, 0.0) == ["coder"]
