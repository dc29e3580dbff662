"""The online chain: what it counts, forgets, and remembers within its bounds."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictor_workflows import retry_loops, trace_of

from predictor_actor.agents import MAX_AGENTS
from predictor_actor.base import Call, Prefix, WorkflowTrace
from predictor_actor.contexts import FOLLOWERS, LEAST_SETS, MAX_ORDER, WAYS, Contexts, Keys, key_of, keys_of
from predictor_actor.graph import CallGraph, Floats
from predictor_actor.markov import Markov


def chance(markov: Markov, path: list[str], agent: str | None, k: int = 1) -> float:
    forecasts = markov.forecast([Prefix.of(trace_of(path).calls)])
    place = -1 if agent is None else forecasts.agents.index(agent)
    return float(forecasts.steps[0, k - 1, place])


def learned(paths: list[list[str]], order: int = 2, memory: int = 128, times: int = 1) -> Markov:
    markov = Markov(order, memory)
    for path in paths * times:
        markov.learn(trace_of(path))
    return markov


def counted_in(table: Contexts, keys: Keys, size: int) -> Floats:
    """Counts of the followers of each context as a dense array."""
    found = np.zeros((len(keys), size), np.float32)
    for row, followers, counts in zip(*table.look_up(keys), strict=True):
        for follower, count in zip(followers, counts, strict=True):
            found[row, min(follower, size - 1)] += count
    return found


class TestForecast:
    def test_order_two_tells_apart_what_order_one_cannot(self) -> None:
        paths = [["a", "x", "b"], ["c", "x", "d"]]
        assert chance(learned(paths, 1, times=20), ["a", "x"], "b") == pytest.approx(0.5, abs=0.05)
        assert chance(learned(paths, 2, times=20), ["a", "x"], "b") > 0.9

    def test_an_unseen_pair_backs_off_to_the_latest_agent(self) -> None:
        markov = learned([["a", "x", "b"]], times=20)
        assert chance(markov, ["b", "x"], "b") == pytest.approx(
            chance(learned([["a", "x", "b"]], 1, times=20), ["x"], "b"), abs=0.1
        )

    def test_steps_beyond_the_first_follow_the_chain_into_the_end(self) -> None:
        markov = learned([["a", "b", "c"]], times=60)
        assert chance(markov, ["a"], "b") > 0.9
        assert chance(markov, ["a"], "c", k=2) > 0.9
        assert chance(markov, ["a"], None, k=3) > 0.9

    def test_before_the_first_call_the_start_decides(self) -> None:
        markov = learned([["a", "b"]], times=20)
        assert chance(markov, [], "a") > 0.9

    def test_the_number_of_rounds_shows_in_long_contexts_alone(self) -> None:
        traces = retry_loops(60)
        short, long = Markov(2), Markov(5)
        for trace in traces:
            short.learn(trace)
            long.learn(trace)
        after_two = ["planner", "coder", "tester", "coder", "tester"]
        assert chance(long, after_two, "reviewer") > 0.9
        assert chance(short, after_two, "reviewer") < 0.7

    def test_it_agrees_with_counting_by_hand(self) -> None:
        rng = random.Random(1)
        paths = [[rng.choice("abc") for _ in range(6)] for _ in range(15)]
        markov = learned(paths, 1, memory=1000)
        after = [follower for path in paths for one, follower in itertools.pairwise([*path, ""]) if one == "a"]
        every = [agent for path in paths for agent in [*path, ""]]
        below = (every.count("b") + 4 / 4) / (len(every) + 4)
        expected = (after.count("b") + len(set(after)) * below) / (len(after) + len(set(after)))
        assert chance(markov, ["c", "a"], "b") == pytest.approx(expected, abs=1e-4)


class TestForgetting:
    def test_after_a_change_what_comes_now_is_learned_within_its_memory(self) -> None:
        markov = learned([["a", "b"]], memory=64, times=500)
        for _ in range(64):
            markov.learn(trace_of(["a", "c"]))
        assert chance(markov, ["a"], "c") > 0.5

    def test_a_number_that_passes_to_a_new_agent_takes_nothing_along(self) -> None:
        markov = Markov(3, max_agents=3)
        for _ in range(20):
            markov.learn(trace_of(["a", "b", "c"]))
        markov.learn(trace_of(["d"]))
        assert "a" not in markov.graph.agents
        number = markov.graph.agents.get("d")
        assert markov.graph.counts[number].sum() == 1  # its end
        assert markov.graph.counts[:, number].sum() == 1  # the start
        d_b = np.array([[0, number, markov.graph.agents.get("b")]])
        assert counted_in(markov.contexts, keys_of(d_b), 4).sum() == 0

    def test_counts_never_add_up_to_more_than_the_memory(self) -> None:
        markov = learned([["a"] * 50], order=5, memory=16, times=10)
        assert markov.graph.counts.sum(axis=1).max() < 16
        assert markov.contexts.tables()["counts"].sum(axis=2).max() < 16


class TestSize:
    def test_twenty_four_agents_take_less_than_twenty_kilobytes(self) -> None:
        rng = random.Random(0)
        markov = Markov(5)
        for _ in range(300):
            markov.learn(trace_of([f"agent {rng.randrange(24)}" for _ in range(20)]))
        assert len(markov.graph.agents) == 24
        assert 2 * markov.nbytes() <= 20 * 1024  # a replica has two: see `Learning`

    def test_a_path_with_an_unknown_beginning_counts_only_what_is_known(self) -> None:
        markov = Markov(5)
        calls = [Call("a"), Call("b")]
        markov.observe(Prefix(["a", "b"], np.zeros((2, 4), np.float32), 100))
        assert not markov.contexts.tables()["counts"].any()
        markov.learn(WorkflowTrace("w", tuple(calls)))
        assert markov.contexts.tables()["counts"].any()


class TestContexts:
    @given(
        st.lists(
            st.tuples(st.lists(st.integers(0, 30), min_size=2, max_size=MAX_ORDER), st.integers(0, 5)), max_size=60
        )
    )
    def test_what_is_counted_is_found_again(self, seen: list[tuple[list[int], int]]) -> None:
        table = Contexts(memory=1000)
        table.reserve(512)
        counted: dict[tuple[int, ...], dict[int, int]] = {}
        for context, follower in seen:
            table.count(key_of(context), follower)
            row = counted.setdefault(tuple(context), {})
            row[follower] = row.get(follower, 0) + 1
        for context, row in counted.items():
            found = counted_in(table, keys_of(np.array([context])), 6)[0]
            assert {place: int(count) for place, count in enumerate(found) if count} == row

    def test_room_for_more_agents_loses_nothing(self) -> None:
        table = Contexts()
        keys = keys_of(np.array(list(itertools.product(range(1, 6), repeat=2))))
        for key in keys:
            table.count(int(key), 3)
        for agents in [*range(1, MAX_AGENTS, 13), MAX_AGENTS]:
            table.reserve(agents)
            assert (counted_in(table, keys, 4)[:, 3] == 1).all()

    def test_the_last_of_as_many_agents_as_there_may_be_is_counted_too(self) -> None:
        table = Contexts()
        table.reserve(MAX_AGENTS)
        table.count(key_of([1, MAX_AGENTS]), MAX_AGENTS)
        found = counted_in(table, keys_of(np.array([[1, MAX_AGENTS]])), MAX_AGENTS + 1)
        assert found[0, MAX_AGENTS] == 1

    def test_of_more_contexts_than_there_is_room_for_those_seen_most_are_taken_over(self) -> None:
        room = LEAST_SETS * WAYS
        keys = keys_of(np.array(list(itertools.product(range(1, 120), repeat=2)))[: 8 * room]).reshape(-1, WAYS)
        counts = np.zeros((*keys.shape, FOLLOWERS), np.uint8)
        counts[:, :, 0] = 1
        counts[: 4 * LEAST_SETS, :, 0] = 10  # four times as many as there is room for, before as many others
        smaller = Contexts()
        smaller._take_over(keys, np.ones_like(counts), counts)
        assert (smaller.tables()["counts"][:, :, 0] == 10).all()

    def test_a_table_goes_on_from_one_of_other_size_and_layout(self) -> None:
        table = Contexts()
        table.reserve(300)
        keys = keys_of(np.array(list(itertools.product(range(1, 6), repeat=2))))
        for key in keys:
            table.count(int(key), 300)
        sparse = {
            name: np.concatenate([each[:, ::-1], np.zeros_like(each[:7])]) for name, each in table.tables().items()
        }
        assert (counted_in(Contexts.restored(sparse, 128), keys, 301)[:, 300] == 1).all()

    def test_contexts_of_different_order_are_different(self) -> None:
        assert len({int(keys_of(np.array([[0] * order + [7]]))[0]) for order in range(1, MAX_ORDER)}) == MAX_ORDER - 1

    @given(st.lists(st.integers(0, 1023), min_size=1, max_size=MAX_ORDER - 1))
    def test_one_context_has_the_key_that_it_has_among_many(self, context: list[int]) -> None:
        assert key_of(context) == int(keys_of(np.array([context]))[0])

    def test_a_full_table_keeps_what_is_seen_most(self) -> None:
        table = Contexts()
        often = keys_of(np.array([[1, 2]]))
        for _ in range(20):
            table.count(key_of([1, 2]), 1)
        for one, two in itertools.product(range(3, 60), repeat=2):
            table.count(key_of([one, two]), 1)
        assert counted_in(table, often, 2)[0, 1] == 20


class TestGraph:
    def test_a_view_goes_on_in_a_new_graph(self) -> None:
        graph = learned(retry_paths()).graph
        other = CallGraph()
        other.restore(graph.view())
        ours, theirs = graph.view(), other.view()
        assert (ours.names, ours.facts) == (theirs.names, theirs.facts)
        assert np.array_equal(ours.counts, theirs.counts)
        assert np.array_equal(ours.means, theirs.means)

    def test_it_restores_into_an_empty_graph_alone(self) -> None:
        graph = learned(retry_paths()).graph
        with pytest.raises(ValueError, match="knows 4 agents already"):
            graph.restore(graph.view())

    def test_bad_numbers_of_calls_leave_the_means_finite(self) -> None:
        graph = CallGraph()
        for bad in (np.nan, np.inf, -np.inf, -5.0, 3e38):
            graph.observe(Prefix(["a", "b"], np.full((2, 4), bad, np.float32), 2))
        assert np.isfinite(graph.view().means).all()


def retry_paths() -> list[list[str]]:
    return [["planner", "coder", "tester", "coder", "tester", "reviewer"]]
