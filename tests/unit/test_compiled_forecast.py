"""Forecasts compiled to value tables, against PBKV's formula; and how often they were right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.accuracy import Accuracy
from cache_actor.forecast import END, LEAST, compiled
from cache_actor.policies.base import VALUE_ONE
from cache_actor.policies.lookahead import lookahead_table, one_step_table
from predictor_actor.base import HORIZON, Forecasts


@st.composite
def forecasts(draw: st.DrawFn) -> Forecasts:
    rows, agents = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    source = np.random.default_rng(draw(st.integers(0, 1000)))
    steps = source.dirichlet([0.3] * (agents + 1), size=(rows, HORIZON)).astype(np.float32)
    steps[:, :, -1] = np.maximum.accumulate(steps[:, :, -1], axis=1)
    steps[:, :, :-1] *= ((1 - steps[:, :, -1]) / np.maximum(steps[:, :, :-1].sum(axis=2), 1e-9))[:, :, None]
    return Forecasts(tuple(f"agent-{number}" for number in range(agents)), steps, "made up")


class TestCompiled:
    @given(forecasts(), st.floats(0.05, 1))
    def test_a_table_is_the_look_ahead_value(self, batch: Forecasts, discount: float) -> None:
        made = list(compiled(batch, list(range(len(batch))), discount, 5.0))
        assert [forecast.after for forecast in made] == list(range(len(batch)))
        survival = batch.survival()
        for row, forecast in enumerate(made):
            wanted = lookahead_table(batch.of(row), survival[row].tolist(), discount)
            next_one = one_step_table(batch.of(row), survival[row].tolist())
            for agent in batch.agents:
                assert forecast.table.get(agent, 0) == pytest.approx(wanted.get(agent, 0), abs=1.1 * LEAST * VALUE_ONE)
                assert forecast.next.get(agent, 0) == pytest.approx(next_one.get(agent, 0) / VALUE_ONE, abs=1.1 * LEAST)
            assert forecast.remaining() == pytest.approx(float(survival[row].sum()))
            assert len(forecast.likeliest) == HORIZON

    @pytest.mark.parametrize("discount", [0.0, -1.0, 1.5, float("nan")])
    def test_a_discount_out_of_range_is_refused(self, discount: float) -> None:
        batch = Forecasts(("a",), np.full((1, HORIZON, 2), 0.5, np.float32), "m")
        with pytest.raises(ValueError, match="discount"):
            list(compiled(batch, [1], discount, 0.0))


class TestAccuracy:
    def test_each_step_is_judged_by_what_came_then(self) -> None:
        accuracy = Accuracy()
        expected: list[tuple[str, ...]] = []
        path = ["a", "b", "c", "a", "b"]
        for place, agent in enumerate(path):
            accuracy.came(agent, expected)
            after = [*path[place + 1 :], END, END, END]
            expected = [(after[0], after[1], "wrong"), *expected][:HORIZON]
        accuracy.ended(expected)
        assert accuracy.figures() == [1.0, 1.0, 0.0]

    def test_calls_without_a_forecast_do_not_count(self) -> None:
        accuracy = Accuracy()
        accuracy.came("a", [(), ("b", "a", "c")])
        assert accuracy.figures() == [None, 1.0, None]
