"""What work costs: from an engine's counts, with what is old forgotten."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import Work
from cache_actor.work_rates import HALF_LIFE_S, MIN_CALLS, MIN_TOKENS, WorkCosts, WorkRates, costs_of


def cost(rates: WorkRates) -> WorkCosts:
    return costs_of({"e": rates})["e"]


def after(seconds: float, work: int, at: float = 1.0) -> WorkRates:
    """An engine whose calls, and whose tokens, took so many seconds."""
    rates = WorkRates()
    rates.worked(Work(), Work(at, seconds, 2 * seconds, work * 100), work)
    return rates


def test_rates_are_seconds_over_work() -> None:
    rates = WorkRates()
    rates.worked(Work(at=1.0), Work(at=3.0, prefill_s=1.0, busy_s=1.8, computed=5000), 4)
    assert cost(rates).prefill_token_s == pytest.approx(1.0 / 5000)
    assert cost(rates).running_call_s == pytest.approx(0.8 / 4)


def test_of_little_work_nothing_is_said() -> None:
    rates = WorkRates()
    few, calls = Work(1.0, 0.5, 1.0, int(MIN_TOKENS) - 1), int(MIN_CALLS) - 1
    rates.worked(Work(), few, calls)
    assert (cost(rates).prefill_token_s, cost(rates).running_call_s) == (0.0, 0.0)


def test_an_engine_that_has_become_slower_is_known_to_be_soon() -> None:
    rates, work = WorkRates(), Work(at=1.0)
    for token_s in (1e-4, 5e-4):
        for _ in range(20):
            done = replace(work, at=work.at + HALF_LIFE_S / 4, prefill_s=work.prefill_s + 4000 * token_s)
            done = replace(done, busy_s=done.prefill_s, computed=work.computed + 4000)
            rates.worked(work, done, 0)
            work = done
    assert cost(rates).prefill_token_s == pytest.approx(5e-4, rel=0.05)


@given(st.lists(st.builds(Work, *[st.floats(0, 1e6)] * 3, st.integers(0, 10**9)), min_size=2, max_size=8))
def test_counts_that_go_back_are_no_work(works: list[Work]) -> None:
    rates = WorkRates()
    for before, now in itertools.pairwise(works):
        rates.worked(before, now, 3)
        assert cost(rates).prefill_token_s >= 0
        assert cost(rates).running_call_s >= 0


def test_an_engine_that_has_measured_nothing_is_taken_to_be_like_the_others() -> None:
    costs = costs_of({"busy": after(10.0, 1000), "new": WorkRates()})
    assert costs["new"] == costs["busy"]
    assert costs["new"].running_call_s == pytest.approx(0.01)


def test_a_slow_moment_is_forgotten_also_where_no_work_comes_any_more() -> None:
    busy, slow = after(10.0, 1000), after(2.0, 20)
    at_once = costs_of({"busy": busy, "slow": slow})["slow"]
    assert at_once.running_call_s > 3 * cost(busy).running_call_s
    slow.worked(Work(at=1.0), Work(at=1.0 + 5 * HALF_LIFE_S), 0)
    later = costs_of({"busy": busy, "slow": slow})["slow"]
    assert later.running_call_s < 1.5 * cost(busy).running_call_s
    assert later.prefill_token_s < 1.5 * cost(busy).prefill_token_s


def test_an_engine_that_is_slow_for_long_is_said_to_be_slow() -> None:
    costs = costs_of({"fast": after(10.0, 1000), "slow": after(40.0, 1000)})
    assert costs["slow"].running_call_s > 3.5 * costs["fast"].running_call_s
    assert costs["slow"].prefill_token_s > 3 * costs["fast"].prefill_token_s


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(11, 10**6)), min_size=1, max_size=5))
def test_costs_lie_between_an_engines_own_and_those_of_all(work: list[tuple[float, int]]) -> None:
    engines = {str(place): after(*one) for place, one in enumerate(work)}
    together = sum(seconds for seconds, _ in work) / sum(calls for _, calls in work)
    for (seconds, calls), found in zip(work, costs_of(engines).values(), strict=True):
        low, high = sorted((seconds / calls, together))
        assert low * (1 - 1e-9) <= found.running_call_s <= high * (1 + 1e-9)
