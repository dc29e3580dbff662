"""Policies of a benchmark by their names, and the forecasts that they are fed with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.policies import VALUE_ONE, make_policy
from cache_actor.policies.lookahead import lookahead_table
from serving.benchmark.contestants import ContestantError, contestant, contestant_names
from serving.benchmark.forecasts import DISCOUNT, HORIZON, Markov, Oracle, Source, Tools, Uniform, source_of
from serving.benchmark.workloads import Call, Segment, Workflow, Workload

AGENTS = ("a", "b", "c", "d")


def workflow(name: str, agents: str, pause_s: float = 1.0) -> Workflow:
    calls = [Call(agent, (Segment(f"{name}/{number}", 10),), 1, pause_s) for number, agent in enumerate(agents)]
    return Workflow(name, tuple(calls))


NAMES = [name.replace("X", "0.3") for name in contestant_names()]


class TestContestants:
    @pytest.mark.parametrize("name", NAMES)
    def test_every_name_is_a_policy_that_exists(self, name: str) -> None:
        made = contestant(name)
        assert made.name == name
        if made.backend == "forecache":
            make_policy(made.policy, made.parameters)

    def test_prefetching_is_a_suffix(self) -> None:
        assert contestant("lookahead-oracle+prefetch").prefetch == "conservative"
        assert contestant("lookahead-noisy(0.5)+aggressive").prefetch == "aggressive"
        assert contestant("lookahead-noisy(0.5)+aggressive").noise == 0.5

    def test_parameters_stand_after_the_name_and_before_the_suffix(self) -> None:
        made = contestant("reuse-markov:guard=false:residence=0.5:features=steps/uses+prefetch")
        assert made.parameters == {"guard": False, "residence": 0.5, "features": "steps,uses"}
        assert (made.policy, made.forecasts, made.prefetch) == ("reuse", "markov", "conservative")
        assert contestant("lifecycle-strict").parameters == {"strict": True}

    @pytest.mark.parametrize(
        "name",
        [
            "reuse:guard",
            "reuse:guard=maybe",
            "reuse:speed=9",
            "stock:guard=false",
            "",
            "lfu",
            "lookahead",
            "lookahead-noisy(2)",
            "lru+prefetch",
            "lookahead-noisy()",
        ],
    )
    def test_what_is_none_is_named_in_the_error(self, name: str) -> None:
        with pytest.raises(ContestantError) as caught:
            contestant(name)
        assert repr(name) in str(caught.value)


class TestSources:
    @pytest.mark.parametrize("name", NAMES)
    def test_every_source_takes_a_whole_workload(self, name: str) -> None:
        workload = Workload("w", (workflow("v", "abca"), workflow("w", "ab")))
        source = source_of(contestant(name), workload, seed=1)
        if source is None:
            return
        source.teach(workload)
        for one in workload.workflows:
            for index in range(len(one.calls)):
                for word in (source.started(one, index, 10.0 * index), source.ended(one, index, 10.0 * index + 5)):
                    assert word is None or all(value > 0 for value in word.table.values())
            source.over(one)

    def test_the_oracle_names_what_comes_and_when_it_ends(self) -> None:
        oracle = Oracle(AGENTS)
        word = oracle.started(workflow("w", "abcd"), 0, 0.0)
        assert word.table == lookahead_table([{"b": 1}, {"c": 1}, {"d": 1}], [1, 1, 1], DISCOUNT)
        assert word.prefetch == {"b": VALUE_ONE}
        assert oracle.started(workflow("w", "abcd"), 3, 0.0).table == {}

    @given(st.floats(0, 1), st.integers(0, 1000))
    def test_noise_is_the_share_of_wrong_steps_and_repeats_itself(self, noise: float, seed: int) -> None:
        long = workflow("w", "abcd" * 60)
        noisy = Oracle(AGENTS, noise, seed)
        right = wrong = 0
        for index in range(len(long.calls) - HORIZON):
            steps, _ = noisy.steps(long, index)
            assert noisy.steps(long, index) == (steps, [1.0] * HORIZON)
            for ahead, step in enumerate(steps, start=1):
                hit = step == {long.calls[index + ahead].agent: 1.0}
                right, wrong = right + hit, wrong + (not hit)
        assert abs(wrong / (right + wrong) - noise) < 0.12

    def test_markov_learns_what_follows_the_last_two(self) -> None:
        markov = Markov()
        markov.teach(Workload("w", (workflow("1", "abac"), workflow("2", "abac"))))
        steps, survival = markov.steps(workflow("x", "ab"), 1)
        assert steps[0] == {"a": 1.0}
        assert steps[1] == {"c": 1.0}
        assert survival == [1.0, 1.0, 0.0]

    def test_markov_falls_back_to_the_last_one_and_knows_nothing_at_first(self) -> None:
        markov = Markov()
        assert markov.started(workflow("x", "ab"), 0, 0.0).table == {}
        markov.teach(Workload("w", (workflow("1", "ab"), workflow("2", "cb"))))
        steps, survival = markov.steps(workflow("y", "da"), 1)
        assert steps[0] == {"b": 1.0}
        assert survival[0] == 1.0

    def test_uniform_says_the_same_of_every_agent(self) -> None:
        word = Uniform(AGENTS).started(workflow("w", "abcd"), 0, 0.0)
        assert len(set(word.table.values())) == 1
        assert set(word.table) == set(AGENTS)

    def test_tools_pin_for_as_long_as_they_have_taken(self) -> None:
        tools = Tools()
        one = workflow("w", "aba", pause_s=1.5)
        first = tools.ended(one, 0, 100.0)
        assert first is not None
        assert first.table == {}
        tools.started(one, 1, 101.5)
        other = workflow("v", "ab", pause_s=1.5)
        word = tools.ended(other, 0, 200.0)
        assert word is not None
        assert word.table == {"a": round(201.5 * VALUE_ONE)}
        assert tools.ended(other, 1, 300.0) is None

    def test_a_source_that_hears_nothing_says_nothing(self) -> None:
        source = Source()
        assert source.started(workflow("w", "a"), 0, 0.0) is None
        assert source.ended(workflow("w", "a"), 0, 0.0) is None
