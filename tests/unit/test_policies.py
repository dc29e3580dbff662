"""What is special to each eviction policy: its formulas by hand-computed numbers, what it learns, its errors."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.policies import VALUE_ONE, Combine, NodeFacts, make_policy, policy_names
from cache_actor.policies.lookahead import lookahead_table, one_step_table
from cache_actor.policies.steps import StepGraph, steps_table
from cache_actor.policies.survival import Survival, Transitions, cachescout_table, survival_table
from cache_actor.policies.ttl import ReturnTimes, pin_table

ACTIVE = NodeFacts(
    retired=False, retirement=0, shared=True, known=True, value=0, tokens=100, last_access=1.0, touched_at=0.0
)
UNKNOWN = replace(ACTIVE, known=False)


def learned(*paths: str, window: int = 1024, scope: Literal["workflow", "global"] = "workflow") -> Transitions:
    """Each path is a workflow of its own, whose agents are single letters."""
    transitions = Transitions(scope, window)
    for number, path in enumerate(paths):
        for agent in path:
            transitions.observe(str(number), agent)
    return transitions


class TestMakePolicy:
    def test_the_policies_are_known_by_name(self) -> None:
        assert {"lifecycle", "lookahead", "lru", "steps", "survival", "ttl"} <= set(policy_names())
        assert make_policy("survival", {"form": "multiplicative"}) == Survival(form="multiplicative")
        assert make_policy("lookahead").combine is Combine.SUM
        assert all(make_policy(name).combine is Combine.MAX for name in ("steps", "survival", "ttl"))

    def test_strict_is_a_parameter_of_the_pbkv_policies_and_off_elsewhere(self) -> None:
        assert not any(make_policy(name).strict for name in policy_names())
        assert all(make_policy(name, {"strict": True}).strict for name in ("lifecycle", "lookahead"))

    @pytest.mark.parametrize(
        ("name", "parameters", "says"),
        [
            ("mru", {}, "unknown policy 'mru'; choose from .*lifecycle, lookahead, lru"),
            ("lru", {"strict": True}, "'lru': unknown parameter 'strict'; it takes no parameters"),
            ("lookahead", {"gama": 1}, "'lookahead': unknown parameter 'gama'; it takes strict, unknown_value"),
            ("lifecycle", {"strict": "yes"}, "strict is 'yes'; choose from False, True"),
            ("lookahead", {"unknown_value": -1}, "unknown_value is -1; give a number from 0 to 1000"),
            ("steps", {"unknown_value": math.nan}, "unknown_value is nan; give a number from 0 to 1"),
            ("survival", {"form": "sum"}, "form is 'sum'; choose from additive, multiplicative"),
            ("survival", {"form": ["additive"]}, "choose from additive, multiplicative"),
            ("survival", {"weight": "2"}, "weight is '2'; give a number from 0 to 1000"),
            ("survival", {"delta": True}, "delta is True; give a number"),
            ("ttl", {"refresh_s": 0}, "refresh_s is 0; give a number from 0.001 to 3600"),
        ],
    )
    def test_an_error_names_the_value_and_what_to_do(self, name: str, parameters: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            make_policy(name, parameters)


class TestLookahead:
    STEPS = ({"a": 0.5, "b": 0.5}, {"a": 0.25, "c": 0.75})

    def test_the_value_is_the_discounted_expected_number_of_uses(self) -> None:
        # a: .5 + .8 * .5 * .25 = .6; b: .5; c: .8 * .5 * .75 = .3
        expected = {"a": round(0.6 * VALUE_ONE), "b": VALUE_ONE // 2, "c": round(0.3 * VALUE_ONE)}
        assert lookahead_table(self.STEPS, (1.0, 0.5)) == expected

    def test_the_one_step_value_is_the_next_call_alone(self) -> None:
        assert one_step_table(self.STEPS, (0.5, 0.25)) == {"a": VALUE_ONE // 4, "b": VALUE_ONE // 4}
        assert one_step_table((), ()) == {}

    def test_agents_worth_nothing_are_absent(self) -> None:
        assert lookahead_table(({"a": 1e-9, "b": 1.0},), (1.0,)) == {"b": VALUE_ONE}

    def test_bad_arguments_say_what_to_give(self) -> None:
        with pytest.raises(ValueError, match="2 steps but 1 survival probabilities"):
            lookahead_table(self.STEPS, (1.0,))
        with pytest.raises(ValueError, match=r"gamma is 1\.5"):
            lookahead_table((), (), gamma=1.5)

    def test_untagged_traffic_stands_between_the_worthless_and_the_sure(self) -> None:
        policy = make_policy("lookahead")
        nodes = [replace(ACTIVE, value=VALUE_ONE), UNKNOWN, replace(ACTIVE, last_access=9.0)]
        assert sorted(nodes, key=lambda node: policy.key(node, 0)) == nodes[::-1]


class TestSteps:
    def test_private_suffixes_go_first_then_the_farthest(self) -> None:
        far, near = replace(ACTIVE, value=VALUE_ONE // 4), replace(ACTIVE, value=VALUE_ONE)
        order = [replace(ACTIVE, shared=False, value=VALUE_ONE, last_access=9.0), ACTIVE, far, UNKNOWN, near]
        assert all(one < two for one, two in pairwise(make_policy("steps").key(node, 0) for node in order))

    def test_an_or_join_takes_the_soonest_and_an_and_join_the_latest(self) -> None:
        edges = {"s": ["a", "z"], "a": ["b"], "b": ["z"]}
        assert StepGraph(edges).steps_to_execution(["s"]) == {"s": 0, "a": 1, "z": 1, "b": 2}
        assert StepGraph(edges, frozenset("z")).steps_to_execution(["s"]) == {"s": 0, "a": 1, "b": 2, "z": 3}

    def test_an_and_join_does_not_wait_for_what_has_already_run(self) -> None:
        graph = StepGraph({"s": ["a", "b"], "a": ["z"], "b": ["c"], "c": ["z"]}, frozenset("z"))
        assert graph.steps_to_execution(["a"]) == {"a": 0, "z": 1}
        assert graph.steps_to_execution(["a", "b"]) == {"a": 0, "b": 0, "c": 1, "z": 2}

    def test_cycles_end_and_a_join_does_not_wait_for_its_own_loop(self) -> None:
        loop = {"plan": ["code"], "code": ["test"], "test": ["code", "done"]}
        assert StepGraph(loop).steps_to_execution(["test"]) == {"test": 0, "code": 1, "done": 1}
        looped = StepGraph(loop, frozenset({"code"}))
        assert looped.steps_to_execution(["plan"]) == {"plan": 0, "code": 1, "test": 2, "done": 3}
        assert StepGraph({"a": ["a", "b"]}).steps_to_execution(["a"]) == {"a": 0, "b": 1}

    def test_and_joins_that_wait_for_each_other_are_absent(self) -> None:
        edges = {"s": ["x", "y"], "x": ["p"], "y": ["q"], "p": ["y"], "q": ["x"]}
        assert StepGraph(edges, frozenset("xy")).steps_to_execution(["s"]) == {"s": 0}

    def test_the_table_is_the_urgency_and_leaves_out_the_unreachable(self) -> None:
        graph = StepGraph({"a": ["b"], "b": ["c"], "x": ["a"]})
        assert steps_table(graph, ["a"]) == {"a": VALUE_ONE, "b": VALUE_ONE // 2, "c": VALUE_ONE // 3}
        assert steps_table(graph, []) == {}

    def test_an_and_join_without_a_predecessor_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"'typo', which no agent leads to; add the edge"):
            StepGraph({"a": ["b"]}, frozenset({"b", "typo"}))


class TestSurvivalOrder:
    def test_additive_is_weighted_survival_plus_recency(self) -> None:
        policy = Survival(weight=2.0, decay_per_s=0.01)
        # p = .75, age 100 s: 2 * .75 + exp(-1) = 1.867879
        key = policy.key(replace(ACTIVE, value=VALUE_ONE * 3 // 4), 100.5)
        assert key == pytest.approx((1.0, 1.8678794, 1.0))

    def test_multiplicative_scales_with_the_size(self) -> None:
        policy = Survival(form="multiplicative", decay_per_s=0.01)
        # (.75 + .01) * (exp(-1) + .01) * 100 = 28.71884
        key = policy.key(replace(ACTIVE, value=VALUE_ONE * 3 // 4), 100.0)
        assert key == pytest.approx((1.0, 28.718836, 1.0))

    def test_only_anchors_inherit_survival_unless_told_otherwise(self) -> None:
        private = replace(ACTIVE, shared=False, value=VALUE_ONE)
        assert Survival().key(private, 0) == Survival().key(replace(private, value=0), 0)
        assert Survival(anchors_only=False).key(private, 0) > Survival().key(private, 0)

    def test_an_unknown_node_stands_at_half_recency(self) -> None:
        policy = Survival()
        old, young = replace(ACTIVE, touched_at=860.0), replace(ACTIVE, touched_at=863.0)
        assert policy.key(old, 1000) < policy.key(UNKNOWN, 1000) < policy.key(young, 1000)

    def test_the_order_drifts_with_time_at_whole_periods(self) -> None:
        policy = Survival(form="multiplicative", refresh_s=2.0)
        assert [policy.changes_at(now) for now in (0.0, 1.9, 2.0)] == [2.0, 2.0, 4.0]
        assert policy.key(ACTIVE, 0.0) == policy.key(ACTIVE, 1.9) > policy.key(ACTIVE, 2.0)


class TestTransitions:
    def test_rows_are_relative_counts_without_self_transitions(self) -> None:
        transitions = learned("aab", "aab", "ac", "abb")
        assert transitions.row("a") == {"b": 0.75, "c": 0.25}
        assert transitions.row("b") == {}
        assert transitions.edges("a", max_edges=1) == {"b": 0.75}
        assert transitions.edges("a", epsilon=0.8) == {}

    def test_each_workflow_has_its_own_current_agent_unless_global(self) -> None:
        per_workflow, everyone = Transitions(), Transitions("global")
        for workflow, agent in [("1", "a"), ("2", "x"), ("1", "b"), ("2", "y")]:
            per_workflow.observe(workflow, agent)
            everyone.observe(workflow, agent)
        assert (per_workflow.row("a"), per_workflow.row("x")) == ({"b": 1.0}, {"y": 1.0})
        assert (everyone.row("a"), everyone.row("x")) == ({"x": 1.0}, {"b": 1.0})
        assert (per_workflow.current("1"), everyone.current("1"), per_workflow.current("3")) == ("b", "y", None)

    def test_the_window_forgets_the_oldest_transition(self) -> None:
        transitions = learned("ab", "ac", "ac", window=2)
        assert transitions.row("a") == {"c": 1.0}
        for agent in "xyz":
            transitions.observe("new", agent)
        assert (transitions.row("a"), transitions.row("x"), transitions.row("y")) == ({}, {"y": 1.0}, {"z": 1.0})

    @given(st.lists(st.tuples(st.sampled_from("123"), st.sampled_from("abcd")), max_size=40), st.integers(1, 9))
    def test_counts_are_those_of_the_window(self, calls: list[tuple[str, str]], window: int) -> None:
        transitions, current, pairs = Transitions(window=window), dict[str, str](), list[tuple[str, str]]()
        for workflow, agent in calls:
            transitions.observe(workflow, agent)
            if current.get(workflow, agent) != agent:
                pairs.append((current[workflow], agent))
            current[workflow] = agent
        recent = pairs[-window:]
        for agent in "abcd":
            followers = [after for before, after in recent if before == agent]
            assert transitions.row(agent) == {one: followers.count(one) / len(followers) for one in followers}
        assert 0.0 <= transitions.predictability() <= 1.0

    def test_an_ended_workflow_leaves_only_what_it_taught(self) -> None:
        transitions = learned("ab")
        for _ in range(2):
            transitions.end("0")
        transitions.observe("0", "c")
        assert (transitions.row("a"), transitions.row("b")) == ({"b": 1.0}, {})

    def test_the_workflow_observed_longest_ago_is_forgotten_at_the_limit(self) -> None:
        transitions = Transitions(max_workflows=2)
        for workflow in "1213":
            transitions.observe(workflow, "a")
        assert [transitions.current(workflow) for workflow in "123"] == ["a", None, "a"]

    def test_predictability_is_one_minus_the_share_of_entropy_that_is_left(self) -> None:
        assert learned().predictability() == 0.0
        assert learned("ab", "ab").predictability() == 1.0
        assert learned("abab" * 5).predictability() == pytest.approx(1.0)
        # From a: b or c; from d: b or c, all equally often: knowing the agent says nothing.
        assert learned("ab", "ac", "db", "dc").predictability() == pytest.approx(0.0)
        # H(next) of (b 2, c 2) = 1 bit; H(next|a) of (2, 1) = .918296, of d 0: R = 1 - 3/4 * .918296
        assert learned("ab", "ab", "ac", "dc").predictability() == pytest.approx(1 - 0.75 * 0.9182958)

    def test_bad_arguments_say_what_to_give(self) -> None:
        with pytest.raises(ValueError, match="scope is 'session'; choose from workflow, global"):
            Transitions("session")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="window is 0; give at least 1"):
            Transitions(window=0)
        with pytest.raises(ValueError, match="max_workflows is 0"):
            Transitions(max_workflows=0)


class TestSurvivalTable:
    def test_survival_falls_by_an_eighth_a_hop(self) -> None:
        table = survival_table(learned("abcdefghijk"), "a")
        assert table == {agent: VALUE_ONE * (8 - hop) // 8 for hop, agent in enumerate("abcdefgh")}

    def test_the_shortest_way_counts_and_an_unseen_agent_has_only_itself(self) -> None:
        seven = VALUE_ONE * 7 // 8
        assert survival_table(learned("abc", "aca"), "a") == {"a": VALUE_ONE, "b": seven, "c": seven}
        assert survival_table(learned(), "new") == {"new": VALUE_ONE}

    def test_edges_below_tau_are_not_followed(self) -> None:
        transitions = learned(*["ab"] * 19, "ac")
        assert set(survival_table(transitions, "a")) == {"a", "b", "c"}
        assert set(survival_table(transitions, "a", tau=0.1)) == set(cachescout_table(transitions, "a")) == {"a", "b"}

    def test_cachescout_follows_the_six_strongest_edges(self) -> None:
        transitions = learned("ah", *[f"a{agent}" for agent in "bcdefg"] * 2)
        assert set(survival_table(transitions, "a")) == set("abcdefgh")
        assert set(cachescout_table(transitions, "a", tau=0.05)) == set("abcdefg")
        assert set(cachescout_table(transitions, "a", tau=0.05, max_edges=7)) == set("abcdefgh")
        assert set(cachescout_table(transitions, "a", tau=0.0, epsilon=0.1, max_edges=7)) == set("abcdefg")


class TestTtl:
    def test_a_pin_holds_to_the_end_of_the_period_in_which_it_expires(self) -> None:
        policy = make_policy("ttl", {"refresh_s": 2.0})
        pinned = replace(ACTIVE, value=pin_table(["a"], 4.5)["a"])
        loose = replace(ACTIVE, last_access=9.0)
        assert [policy.key(pinned, now) > policy.key(loose, now) for now in (0.0, 4.5, 5.9, 6.0)] == [1, 1, 1, 0]
        assert policy.changes_at(4.5) == 6.0

    def test_an_unknown_node_is_not_pinned(self) -> None:
        policy = make_policy("ttl")
        assert policy.key(UNKNOWN, 0) == policy.key(ACTIVE, 0) < policy.key(replace(ACTIVE, value=1), 0)

    def test_the_pin_time_weighs_returns_against_memory(self) -> None:
        times = ReturnTimes()
        for seconds in (1.0, 2.0, 30.0, 3.0):
            times.observe("search", seconds)
        # Gains at 1, 2, 3, 30 s: .25 * 8 - .5, .5 * 8 - 1, .75 * 8 - 1.5, 8 - 15 = 1.5, 3, 4.5, -7
        assert times.ttl("search", benefit_s=8.0, memory_cost_per_s=0.5) == 3.0
        assert times.ttl("search", benefit_s=8.0, memory_cost_per_s=0.0) == 30.0
        # Gains 78 at 3 s and at 30 s: the shortest of equally good times.
        assert times.ttl("search", benefit_s=108.0, memory_cost_per_s=1.0) == 3.0
        assert times.ttl("search", benefit_s=1.0, memory_cost_per_s=1.0) == 0.0
        assert times.ttl("never seen", benefit_s=8.0, memory_cost_per_s=0.0) == 0.0

    @given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 100), st.integers(0, 10))
    def test_no_other_pin_time_is_better(self, returns: list[int], benefit: int, cost: int) -> None:
        times = ReturnTimes()
        for seconds in returns:
            times.observe("tool", seconds)

        def gain(pin_s: float) -> float:
            within = sum(seconds <= pin_s for seconds in returns) / max(1, len(returns))
            return within * benefit - cost * pin_s

        best = max(gain(pin_s) for pin_s in range(52))
        assert gain(times.ttl("tool", benefit, cost)) == pytest.approx(best)

    def test_old_samples_and_tools_are_forgotten_at_their_limits(self) -> None:
        times = ReturnTimes(samples=2, max_tools=2)
        for tool, seconds in (("a", 99.0), ("b", 5.0), ("a", 1.0), ("a", 2.0), ("c", 7.0)):
            times.observe(tool, seconds)
        assert [times.ttl(tool, 100.0, 0.0) for tool in "abc"] == [2.0, 0.0, 7.0]

    def test_bad_limits_and_times_say_what_to_give(self) -> None:
        with pytest.raises(ValueError, match="max_tools is 0; give at least 1"):
            ReturnTimes(max_tools=0)
        with pytest.raises(ValueError, match=r"return time of tool 't' is -1 s; give a finite time"):
            ReturnTimes().observe("t", -1)
