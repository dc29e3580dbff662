"""What work costs: from an engine's counts, with what is old forgotten."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import Work
from cache_actor.work_rates import HALF_LIFE_S, MIN_CALLS, MIN_TOKENS, WorkRates


def test_rates_are_seconds_over_work() -> None:
    rates = WorkRates()
    rates.worked(Work(at=1.0), Work(at=3.0, prefill_s=1.0, busy_s=1.8, computed=5000), 4)
    assert rates.prefill_token_s == pytest.approx(1.0 / 5000)
    assert rates.running_call_s == pytest.approx(0.8 / 4)


def test_of_little_work_nothing_is_said() -> None:
    rates = WorkRates()
    few, calls = Work(1.0, 0.5, 1.0, int(MIN_TOKENS) - 1), int(MIN_CALLS) - 1
    rates.worked(Work(), few, calls)
    assert (rates.prefill_token_s, rates.running_call_s) == (0.0, 0.0)


def test_an_engine_that_has_become_slower_is_known_to_be_soon() -> None:
    rates, work = WorkRates(), Work(at=1.0)
    for token_s in (1e-4, 5e-4):
        for _ in range(20):
            done = replace(work, at=work.at + HALF_LIFE_S / 4, prefill_s=work.prefill_s + 4000 * token_s)
            done = replace(done, busy_s=done.prefill_s, computed=work.computed + 4000)
            rates.worked(work, done, 0)
            work = done
    assert rates.prefill_token_s == pytest.approx(5e-4, rel=0.05)


@given(st.lists(st.builds(Work, *[st.floats(0, 1e6)] * 3, st.integers(0, 10**9)), min_size=2, max_size=8))
def test_counts_that_go_back_are_no_work(works: list[Work]) -> None:
    rates = WorkRates()
    for before, now in itertools.pairwise(works):
        rates.worked(before, now, 3)
        assert rates.prefill_token_s >= 0
        assert rates.running_call_s >= 0
