"""What every predictor promises, whatever it is clever about."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predictor_workflows import retry_loops, trace_of

from predictor_actor.base import HORIZON, PATH_LIMIT, Predictor, Prefix, prefixes_of
from predictor_actor.baselines import Oracle, Transition, Uniform
from predictor_actor.graphsage import Calibration, GraphSage
from predictor_actor.markov import Markov
from predictor_actor.model import Forecaster, ModelConfig

MAKERS: dict[str, Callable[[], Predictor]] = {
    "uniform": Uniform,
    "transition": Transition,
    "markov-1": lambda: Markov(1),
    "markov-2": lambda: Markov(2),
    "markov-5": lambda: Markov(5),
    "oracle": lambda: Oracle(retry_loops(3)),
    "noisy": lambda: Oracle(retry_loops(3), noise=0.5),
    "graphsage": lambda: GraphSage(Forecaster(ModelConfig(width=8, hidden=8)), Calibration(), Markov(5), "untrained"),
    "graphsage-text": lambda: GraphSage(
        Forecaster(ModelConfig(width=8, hidden=8, text_size=4)), Calibration(), Markov(2), "untrained"
    ),
    "r-gcn": lambda: GraphSage(
        Forecaster(ModelConfig(width=8, hidden=8, backbone="rgcn")), Calibration(), Markov(3), "untrained"
    ),
}

names = st.sampled_from(["planner", "coder", "tester", "reviewer", "an agent never seen", "", "é" * 50])
paths = st.lists(names, max_size=8)
numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def prefixes(draw: st.DrawFn) -> Prefix:
    agents = draw(paths)
    rows = draw(st.lists(st.tuples(*[numbers] * 4), min_size=len(agents), max_size=len(agents)))
    columns = np.array(rows, np.float32).reshape(len(agents), 4)
    hidden = draw(st.sampled_from([None, b"", b"\x00" * 8, b"\xff" * 8, b"\x00" * 999]))
    return Prefix(
        agents, columns, len(agents) + draw(st.integers(0, 10_000)), hidden, draw(st.sampled_from(["", "0-0"]))
    )


@pytest.fixture(params=MAKERS, scope="module")
def learned(request: pytest.FixtureRequest) -> Predictor:
    predictor = MAKERS[request.param]()
    for trace in retry_loops(12):
        predictor.learn(trace)
    return predictor


@pytest.fixture(params=MAKERS)
def fresh(request: pytest.FixtureRequest) -> Predictor:
    return MAKERS[request.param]()


class TestForecast:
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(batch=st.lists(prefixes(), max_size=5))
    def test_any_batch_gives_distributions_in_which_what_has_ended_stays_ended(
        self, learned: Predictor, batch: list[Prefix]
    ) -> None:
        forecasts = learned.forecast(batch)
        assert forecasts.steps.shape == (len(batch), HORIZON, len(forecasts.agents) + 1)
        assert forecasts.steps.dtype == np.float32
        assert (forecasts.steps >= 0).all()
        assert np.allclose(forecasts.steps.sum(axis=2), 1, atol=1e-4)
        assert (np.diff(forecasts.steps[:, :, -1], axis=1) >= -1e-5).all()

    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(batch=st.lists(prefixes(), min_size=2, max_size=5))
    def test_a_forecast_depends_neither_on_the_batch_nor_on_those_before(
        self, learned: Predictor, batch: list[Prefix]
    ) -> None:
        together = learned.forecast(batch).steps
        alone = np.concatenate([learned.forecast([prefix]).steps for prefix in batch])
        assert np.allclose(together, alone, atol=1e-4)

    def test_a_predictor_that_knows_nothing_answers(self, fresh: Predictor) -> None:
        [trace] = retry_loops(1)
        forecasts = fresh.forecast([Prefix([], np.zeros((0, 4), np.float32), 0), *prefixes_of(trace)])
        assert np.allclose(forecasts.steps.sum(axis=2), 1, atol=1e-4)

    def test_a_path_of_ten_thousand_calls_is_served_from_its_latest(self, learned: Predictor) -> None:
        calls = trace_of(["coder", "tester"] * 5000).calls
        long = Prefix.of(calls)
        assert (len(long.agents), long.length) == (PATH_LIMIT, 10_000)
        assert np.allclose(learned.forecast([long]).steps.sum(axis=2), 1, atol=1e-4)

    def test_the_shares_of_one_workflow_add_up_among_those_alive(self, learned: Predictor) -> None:
        forecasts = learned.forecast(prefixes_of(retry_loops(1)[0])[:3])
        for step, alive in zip(forecasts.of(0), forecasts.survival()[0], strict=True):
            assert set(step) <= set(forecasts.agents)
            assert alive < 1e-6 or sum(step.values()) == pytest.approx(1, abs=1e-3)


class TestState:
    def test_agents_without_end_leave_a_bounded_state(self, fresh: Predictor) -> None:
        for number in range(700):
            fresh.learn(trace_of([f"agent {number}", f"agent {number + 1}"], str(number)))
        forecasts = fresh.forecast(prefixes_of(trace_of(["agent 699", "agent 700"])))
        assert len(forecasts.agents) <= 512
        assert np.allclose(forecasts.steps.sum(axis=2), 1, atol=1e-4)
