"""What the coordinator knows: consistent after any sequence of reports, bounded, and rebuilt from the engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordinator_reports import MadeUpEngine, began, cache_report, certain, over
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.cluster import ENGINE_SILENT_S, Cluster
from cache_actor.decisions import in_words
from cache_actor.forecast import compiled
from cache_actor.messages import EngineReport, Eviction, Receipt, Work, WorkflowSeen
from cache_actor.snapshots import Resident
from cache_actor.work_rates import costs_of

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["began", "over", "held", "end", "idle", "restart", "missed", "silent"]),
        st.sampled_from(["e1", "e2", "e3"]),
        st.sampled_from([f"w{number}" for number in range(6)]),
        st.sampled_from(["planner", "coder"]),
    ),
    max_size=80,
)


def check(cluster: Cluster) -> None:
    """What holds after every report."""
    for engine in cluster.engines.values():
        assert set(engine.news) <= set(cluster.workflows)
        assert set(engine.workflows) <= set(cluster.workflows)
        assert not set(engine.ends) & set(engine.workflows)
        for workflow in engine.workflows:
            assert cluster.workflows[workflow].engine == engine.id
    homes = [name for engine in cluster.engines.values() for name in engine.workflows]
    assert len(homes) == len(set(homes))
    assert not set(cluster.workflows) & set(cluster.ended)
    for state in cluster.workflows.values():
        assert set(state.residency) <= set(state.engines)


class TestState:
    @given(ACTIONS)
    def test_it_is_consistent_after_any_reports(self, actions: list[tuple[str, str, str, str]]) -> None:
        cluster = Cluster(max_workflows=4)
        engines = {name: MadeUpEngine(name) for name in ("e1", "e2", "e3")}
        now = 100.0
        for action, name, workflow, agent in actions:
            now += 1
            engine = engines[name]
            match action:
                case "began":
                    cluster.hear(engine.report(began(workflow, agent, now)), now)
                case "over":
                    cluster.hear(engine.report(over(workflow, agent, now)), now)
                case "held":
                    held = [cache_report(residency={workflow: [10, 5]})]
                    cluster.hear(engine.report(cache=held), now)
                case "idle":
                    cluster.hear(engine.report(ended={workflow: "idle"}), now)
                case "end":
                    cluster.hear(engine.report(ended={workflow: "final"}), now)
                case "restart":
                    engines[name] = engine = MadeUpEngine(name, engine.epoch + 1)
                    cluster.hear(engine.report(), now)
                case "missed":
                    next(engine.numbers)
                    assert cluster.hear(engine.report(), now).tell_all
                case "silent":
                    now += 2 * ENGINE_SILENT_S
                    cluster.expire(now, idle_s=1000.0)
                    assert not cluster.engines
            begun, asked, ended = cluster.take(3)
            assert len(begun) <= 3
            assert len(asked) <= 3
            assert len(ended) <= 3
            assert len(cluster.workflows) <= 4
            check(cluster)

    def test_every_call_is_to_be_observed_once_and_in_order(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w", "a"), over("w", "a"), began("w", "b"), began("v", "a")), 1.0)
        begun, asked, _ = cluster.take(10)
        assert [(prefix.workflow, list(prefix.agents)) for prefix in begun] == [
            ("w", ["a"]),
            ("w", ["a", "b"]),
            ("v", ["a"]),
        ]
        assert asked == []
        assert not cluster.has_moved

    def test_an_end_reaches_the_other_engines_that_may_hold_something(self) -> None:
        cluster, one, two, three = Cluster(), MadeUpEngine("e1"), MadeUpEngine("e2"), MadeUpEngine("e3")
        for engine in (one, two, three):
            cluster.hear(engine.report(began("w") if engine is not three else began("v")), 1.0)
        cluster.hear(two.report(ended={"w": "final"}), 2.0)
        assert set(cluster.engines["e1"].ends) == {"w"}
        assert not cluster.engines["e2"].ends
        assert not cluster.engines["e3"].ends

    def test_a_workflow_that_calls_again_is_not_ended_any_more(self) -> None:
        cluster, one, two = Cluster(), MadeUpEngine("e1"), MadeUpEngine("e2")
        cluster.hear(one.report(began("w")), 1.0)
        cluster.hear(two.report(began("w")), 1.0)
        cluster.hear(two.report(ended={"w": "idle"}), 2.0)
        cluster.hear(one.report(began("w")), 3.0)
        assert not cluster.engines["e1"].ends
        assert "w" in cluster.workflows

    def test_one_that_is_idle_where_it_was_before_goes_on_where_it_is(self) -> None:
        cluster, one, two = Cluster(), MadeUpEngine("e1"), MadeUpEngine("e2")
        cluster.hear(one.report(began("w"), over("w")), 1.0)
        cluster.hear(two.report(began("w"), over("w")), 2.0)
        cluster.hear(one.report(ended={"w": "idle"}), 3.0)
        assert "w" in cluster.workflows
        cluster.hear(two.report(ended={"w": "idle"}), 4.0)
        assert "w" not in cluster.workflows
        assert not cluster.engines["e1"].ends

    def test_an_engine_that_a_workflow_has_left_has_no_news_of_it(self) -> None:
        cluster, left, home = Cluster(), MadeUpEngine("e1"), MadeUpEngine("e2")
        cluster.hear(left.report(began("w"), began("w")), 1.0)
        cluster.hear(home.report(began("w"), over("w")), 2.0)
        cluster.hear(left.report(over("w"), cache=[cache_report(residency={"w": [10, 5]})]), 3.0)
        assert "e1" not in cluster.workflows["w"].residency
        cluster.hear(home.report(ended={"w": "final"}), 4.0)
        check(cluster)

    def test_a_trace_of_each_ended_workflow_is_to_be_learned(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w", "a"), over("w", "a"), ended={"w": "deleted"}), 1.0)
        _, _, ended = cluster.take(10)
        assert [(trace.workflow, trace.ending, [call.agent for call in trace.calls]) for trace in ended] == [
            ("w", "deleted", ["a"])
        ]

    def test_a_workflow_of_which_nobody_speaks_is_forgotten_with_an_open_end(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w")), 1.0)
        cluster.expire(500.0, idle_s=100.0)
        assert not cluster.workflows
        assert cluster.take(10)[2][0].ending == "open"


class TestForecasts:
    def test_an_older_forecast_does_not_replace_a_newer_one(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w", "a"), began("w", "b")), 1.0)
        prefixes = cluster.take(10)[0]
        first, second = compiled(certain(prefixes, ["a", "b"], "b"), [1, 2], 0.8, 1.0)
        cluster.expect("w", second, 1.0)
        cluster.expect("w", first, 1.0)
        assert cluster.workflows["w"].forecast == second

    def test_one_for_a_workflow_that_has_ended_is_dropped(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w", "a")), 1.0)
        (forecast,) = compiled(certain(cluster.take(10)[0], ["a"], "a"), [1], 0.8, 1.0)
        cluster.hear(engine.report(ended={"w": "final"}), 2.0)
        cluster.expect("w", forecast, 3.0)
        assert cluster.counts["forecasts_too_late"] == 1

    def test_accuracy_counts_calls_whose_forecast_came_in_time(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        for place in range(6):
            cluster.hear(engine.report(began("w", "a", float(place))), float(place))
            begun = cluster.take(10)[0]
            if place != 2:  # the predictor was away for one call
                (forecast,) = compiled(certain(begun, ["a", "b"], "a"), [begun[0].length], 0.8, 1.0)
                cluster.expect("w", forecast, float(place))
        assert cluster.accuracy.figures() == [1.0, 1.0, 1.0]


class TestRestart:
    def test_seen_workflows_are_forecast_and_not_observed_again(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        seen = WorkflowSeen("w", None, ["a", "b"], [5.0, 1.0, 10.0, 11.0, 6.0, 1.0, 12.0, 13.0], 9, 0)
        assert cluster.hear(engine.report(seen=[seen]), 20.0).tell_all
        begun, asked, _ = cluster.take(10)
        assert begun == []
        assert [(prefix.workflow, list(prefix.agents), prefix.length) for prefix in asked] == [("w", ["a", "b"], 9)]

    def test_what_does_not_fit_is_counted_and_left_out(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(seen=[WorkflowSeen("w", None, ["a"], [1.0], 1, 0)]), 1.0)
        assert not cluster.workflows
        assert cluster.counts["reports_malformed"] == 1

    def test_a_restarted_engine_holds_nothing(self) -> None:
        cluster = Cluster()
        cluster.hear(MadeUpEngine("e", 1).report(began("w"), cache=[cache_report(residency={"w": [10, 5]})]), 1.0)
        cluster.hear(MadeUpEngine("e", 2).report(), 2.0)
        assert cluster.workflows["w"].residency == {}
        assert cluster.counts["engines_lost"] == 1

    def test_calls_of_which_nobody_told_the_end_do_not_run_for_ever(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("lost"), began("kept"), over("kept")), 1.0)
        cluster.hear(engine.report(seen=[WorkflowSeen("lost", None, ["coder"], [1.0] * 4, 1, 0)]), 2.0)
        assert cluster.workflows["lost"].path.running == 0
        cluster.hear(engine.report(began("kept")), 3.0)
        cluster.expire(3.0 + 2 * ENGINE_SILENT_S, idle_s=1000.0)
        assert cluster.workflows["kept"].path.running == 0
        other = MadeUpEngine("other")
        cluster.hear(other.report(began("kept"), over("kept")), 40.0)
        assert cluster.workflows["kept"].path.running == 0

    def test_what_a_lost_engine_held_of_workflows_elsewhere_is_forgotten(self) -> None:
        cluster, one, two = Cluster(), MadeUpEngine("e1"), MadeUpEngine("e2")
        cluster.hear(one.report(began("w"), cache=[cache_report(residency={"w": [10, 5]})]), 1.0)
        cluster.hear(two.report(began("w")), 20.0)
        cluster.expire(20.0, idle_s=1000.0)
        assert cluster.workflows["w"].residency == {}
        assert cluster.workflows["w"].engines == {"e2"}

    def test_all_that_go_are_told_once_however_they_go(self) -> None:
        cluster, engine = Cluster(max_workflows=2), MadeUpEngine()
        cluster.hear(engine.report(began("a"), began("b"), began("c"), ended={"b": "final"}), 1.0)
        assert sorted(cluster.take_gone()) == ["a", "b"]
        cluster.expire(500.0, idle_s=100.0)
        assert cluster.take_gone() == ["c"]
        assert cluster.take_gone() == []

    def test_what_an_engine_did_before_it_was_known_is_not_taken_for_the_work_of_its_next_calls(self) -> None:
        cluster, old = Cluster(), MadeUpEngine()
        life = Work(at=9000.0, prefill_s=100.0, busy_s=900.0, computed=500_000)
        for done in range(3):  # a second for a call, and half of it to generate
            old.work = replace(
                life, at=life.at + done, prefill_s=life.prefill_s + 4 * done, computed=life.computed + 1000 * done
            )
            old.work = replace(old.work, busy_s=life.busy_s + 8 * done)
            cluster.hear(old.report(*(over(f"w{done}-{call}") for call in range(8))), float(done))
        costs = costs_of({"e": cluster.engines["e"].rates})["e"]
        assert costs.running_call_s == pytest.approx(0.5, rel=0.01)
        assert costs.prefill_token_s == pytest.approx(4e-3, rel=0.01)


class TestCache:
    def test_receipts_and_evictions_move_what_is_held_and_are_logged(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w"), cache=[cache_report(residency={"w": [100, 40]})]), 1.0)
        cluster.engines["e"].orders[7] = ("w", "coder", 40, 1.0)
        told = cache_report(
            receipts=[Receipt(7, "clipped", 30, "no room")], evictions=[Eviction("w", "host", "recency", 5)]
        )
        cluster.hear(engine.report(cache=[told]), 2.0)
        state = cluster.workflows["w"]
        assert state.residency["e"] == Resident(130, 5)
        cluster.hear(engine.report(cache=[cache_report(evictions=[Eviction("w", "device", "low_value", 90)])]), 3.0)
        assert state.residency["e"] == Resident(40, 95)
        assert not cluster.engines["e"].orders
        told_why = [in_words(one) for one in state.decisions if one[1] in ("receipt", "evicted")]
        assert "clipped: 30 tokens loaded (no room)" in told_why[0]
        assert "90 tokens left the device tier: of all that was there" in told_why[2]

    def test_a_refused_plan_is_told_anew(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w")), 1.0)
        state = cluster.engines["e"]
        state.news.clear()
        generation = state.generation
        cluster.hear(engine.report(cache=[cache_report(accepted=False)]), 2.0)
        assert state.generation != generation
        assert "w" in state.news

    def test_what_engines_count_is_summed_over_them_and_over_their_restarts(self) -> None:
        cluster = Cluster()
        for engine, counts in (
            (MadeUpEngine("e1"), [10, 30]),
            (MadeUpEngine("e2"), [5]),
            (MadeUpEngine("e1", 2), [7, 8]),
        ):
            for count in counts:
                told = EngineReport(1, True, "", [], {"prefetch_used": count, "nodes": 1}, {}, {}, [], 0)
                cluster.hear(engine.report(cache=[told]), 1.0)
        assert cluster.counts["cache_prefetch_used"] == 30 + 5 + 8
        assert "cache_nodes" not in cluster.counts
