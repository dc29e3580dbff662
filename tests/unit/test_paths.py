"""Paths of calls in bounded space, against a plain list of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.paths import MAX_CALLS, CallPath
from predictor_actor.base import PATH_LIMIT

AGENTS = st.sampled_from(["planner", "coder", "tester"])
STEPS = st.lists(st.tuples(st.booleans(), AGENTS, st.integers(0, 5000)), max_size=120)


def played(steps: list[tuple[bool, str, int]]) -> tuple[CallPath, list[list[float | str]]]:
    """A path, and the same as a plain list of [agent, prompt, output, start, end]."""
    path, calls = CallPath(), list[list[float | str]]()
    for place, (over, agent, tokens) in enumerate(steps):
        at = 1000.0 + place
        if over:
            running = next((call for call in calls if call[0] == agent and math.isnan(float(call[4]))), None)
            assert path.over(agent, at, 0, tokens) == (running is not None)
            if running is not None:
                running[2], running[4] = tokens, at
        else:
            path.began(agent, at, tokens)
            calls.append([agent, tokens or math.nan, math.nan, at, math.nan])
    return path, calls


class TestPath:
    @given(STEPS)
    def test_the_prefix_is_what_was_told(self, steps: list[tuple[bool, str, int]]) -> None:
        path, calls = played(steps)
        prefix = path.prefix("w")
        kept = calls[-PATH_LIMIT:]
        start = float(calls[0][3]) if calls else 0.0
        assert prefix.agents == [call[0] for call in kept]
        assert prefix.length == path.length == len(calls)
        wanted = [[call[1], call[2], float(call[3]) - start, float(call[4]) - start] for call in kept]
        assert np.array_equal(prefix.numbers, np.array(wanted, np.float32).reshape(-1, 4), equal_nan=True)
        assert path.running == sum(math.isnan(float(call[4])) for call in calls)

    @given(STEPS, st.integers(1, 30))
    def test_what_is_told_again_makes_the_same_path(self, steps: list[tuple[bool, str, int]], most: int) -> None:
        path, calls = played(steps)
        agents, numbers = path.told(most)
        again = CallPath.seen(agents, numbers, path.length, 0)
        before, after = path.prefix("w"), again.prefix("w")
        assert list(after.agents) == list(before.agents)[-most:]
        assert after.length == before.length
        if len(calls) <= most:
            np.testing.assert_allclose(after.numbers, before.numbers, atol=1e-3)

    def test_it_is_bounded_and_goes_on_counting(self) -> None:
        path = CallPath()
        for place in range(3 * MAX_CALLS):
            path.began(f"a{place % 7}", float(place), 10)
            assert len(path.agents) <= MAX_CALLS
        assert path.length == 3 * MAX_CALLS
        assert path.running <= MAX_CALLS
        assert path.prefix("w").agents[-1] == f"a{(3 * MAX_CALLS - 1) % 7}"

    @pytest.mark.parametrize(
        ("agents", "numbers", "length", "running"),
        [(["a"], [1.0], 1, 0), (["a"], [1.0] * 4, 0, 0), (["a"], [1.0] * 4, 1, 2), (["a"], [1.0] * 4, 1, -1)],
    )
    def test_what_does_not_fit_is_refused(
        self, agents: list[str], numbers: list[float], length: int, running: int
    ) -> None:
        with pytest.raises(ValueError, match="agents"):
            CallPath.seen(agents, numbers, length, running)

    def test_the_trace_has_what_is_known(self) -> None:
        path = CallPath()
        path.began("planner", 100.0, 50)
        path.over("planner", 101.5, 55, 7)
        path.began("coder", 102.0, 0)
        trace = path.trace("w", "final")
        assert trace.started_at == 100.0
        assert [(call.agent, call.prompt_tokens, call.output_tokens) for call in trace.calls] == [
            ("planner", 55, 7),
            ("coder", 0, 0),
        ]
        assert (trace.calls[0].start_s, trace.calls[0].end_s) == (0.0, 1.5)
        assert (trace.calls[1].start_s, trace.calls[1].end_s) == (2.0, None)


class TestContext:
    """What admission goes by."""

    def test_it_is_that_of_the_latest_call_whose_tokens_are_known(self) -> None:
        path = CallPath()
        assert (path.context, path.growth, path.gap_s(5.0)) == (0, 0.0, 0.0)
        path.began("planner", 100.0, 1000)
        assert (path.context, path.growth) == (1000, 0.0)
        path.over("planner", 101.0, 1000, 50)
        path.began("coder", 103.0, 0)
        assert (path.context, path.growth) == (1050, 0.0)
        path.over("coder", 104.0, 1400, 50)
        assert (path.context, path.growth) == (1450, 400.0)

    def test_a_call_that_was_refused_has_left_nothing(self) -> None:
        path = CallPath()
        path.began("planner", 1.0, 90_000)  # more than any engine holds
        assert path.over("planner", 1.1, 90_000, 0)
        assert (path.context, path.growth) == (0, 0.0)
        path.began("planner", 2.0, 1000)
        path.over("planner", 3.0, 1000, 50)
        path.began("coder", 4.0, 90_000)
        path.over("coder", 4.1, 90_000, 0)
        assert path.context == 1050

    def test_one_that_shrinks_does_not_grow(self) -> None:
        path = CallPath()
        for at, tokens in ((100.0, 1000), (102.0, 200)):
            path.began("planner", at, tokens)
            path.over("planner", at + 1, tokens, 1)
        assert path.growth == 0.0

    def test_the_gap_is_the_mean_of_the_pauses_less_what_has_passed(self) -> None:
        path = CallPath()
        for at in (100.0, 103.0, 108.0):
            path.began("planner", at, 10)
            path.over("planner", at + 1, 10, 1)
        assert path.gap_s(109.0) == pytest.approx(3.0)
        assert path.gap_s(110.5) == pytest.approx(1.5)
        assert path.gap_s(200.0) == 0.0
        path.began("planner", 111.0, 10)
        assert path.gap_s(111.0) == 0.0

    @given(STEPS)
    def test_it_is_never_below_nothing(self, steps: list[tuple[bool, str, int]]) -> None:
        path, _ = played(steps)
        assert path.context >= 0
        assert path.growth >= 0
        assert 0 <= path.gap_s(2000.0) < 1000
