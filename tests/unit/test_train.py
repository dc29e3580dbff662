"""Training: what the model learns that chains cannot, that it is repeatable, and that nothing leaks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from predictor_workflows import retry_loops, trace_of

from predictor_actor.base import AgentFacts, WorkflowTrace, prefixes_of
from predictor_actor.evaluate import outcomes
from predictor_actor.examples import IGNORED, make_folds
from predictor_actor.graphsage import Calibration, GraphSage
from predictor_actor.markov import Markov
from predictor_actor.model import ModelConfig, parameter_count
from predictor_actor.train import TrainConfig, TrainError, calibrate, train

SMALL = TrainConfig(model=ModelConfig(width=16, hidden=32), epochs=12, few_calls=0)


@pytest.fixture(scope="module")
def trained() -> GraphSage:
    return train(retry_loops(80), SMALL).predictor


def far_apart(count: int, seed: int) -> list[WorkflowTrace]:
    """The first agent of nine calls decides the last; in between a chain of any order here sees nothing of it."""
    rng = random.Random(seed)
    between = ["a", "b", "a", "b", "a", "b", "a"]
    branches = (("north", "left"), ("south", "right"))
    paths = [[start, *between, end] for start, end in (rng.choice(branches) for _ in range(count))]
    return [trace_of(path, f"{seed}-{number}") for number, path in enumerate(paths)]


class TestAccuracy:
    def test_it_knows_retry_loops_that_it_has_not_seen(self, trained: GraphSage) -> None:
        assert min(outcomes(trained, retry_loops(20, seed=9)).figures().top1) > 0.9

    def test_attention_over_the_path_sees_farther_than_any_chain(self) -> None:
        learning, test = far_apart(150, 0), far_apart(30, 1)
        chain = Markov(5)
        for trace in learning:
            chain.learn(trace)
        config = TrainConfig(model=ModelConfig(width=32, hidden=64), few_calls=0, patience=20, batch=64)
        model = train(learning, config).predictor
        last = [place for place, prefix in enumerate(p for t in test for p in prefixes_of(t)) if prefix.length == 8]
        assert outcomes(model, test).first[last, 0].mean() > 0.95
        assert outcomes(chain, test).first[last, 0].mean() < 0.8

    def test_the_text_decides_where_nothing_else_can(self) -> None:
        rng = np.random.default_rng(0)

        def workflows(count: int, seed: int) -> list[WorkflowTrace]:
            found = []
            for number in range(count):
                side = int(rng.integers(2))
                state = (rng.normal(size=8) + 4 * side * np.eye(8)[0]).astype(np.float16).tobytes()
                found.append(trace_of(["planner", ["coder", "tester"][side]], f"{seed}-{number}", hidden=state))
            return found

        learning, test = workflows(150, 0), workflows(40, 1)
        shares = {}
        for name, size in (("with", 8), ("without", 0)):
            model = train(learning, TrainConfig(model=ModelConfig(16, 32, text_size=size), few_calls=0)).predictor
            shares[name] = outcomes(model, test).first[::2, 0].mean()
        assert shares["with"] > 0.85  # the best possible: 0.98
        assert shares["without"] < 0.7

    def test_an_agent_never_called_gets_its_chance_where_its_like_is_called(self) -> None:
        model = train(retry_loops(120), TrainConfig(model=ModelConfig(32, 64), few_calls=0)).predictor
        [newcomer] = retry_loops(1, coder="coder-v2")
        model.introduce({"coder-v2": AgentFacts(400, (21, 22, 23))})
        forecasts = model.forecast(prefixes_of(newcomer)[:1])
        chance = forecasts.steps[0, 0, forecasts.agents.index("coder-v2")]
        assert chance > 1 / (len(forecasts.agents) + 1)
        after = forecasts.agents.index("tester")
        assert model.forecast(prefixes_of(newcomer)[1:2]).steps[0, 0, after] > 0.8

    def test_an_agent_that_is_like_none_takes_nothing_from_the_known(self, trained: GraphSage) -> None:
        before = trained.forecast(prefixes_of(retry_loops(1)[0])[:1])
        trained.introduce({"zzz": AgentFacts(9, (99,))})
        after = trained.forecast(prefixes_of(retry_loops(1)[0])[:1])
        assert after.steps[0, 0, after.agents.index("zzz")] < 0.05
        assert abs(after.steps[0, 0, 1] - before.steps[0, 0, 1]) < 0.05


class TestRepeatable:
    def test_equal_seeds_give_equal_models(self) -> None:
        config = TrainConfig(model=ModelConfig(8, 8), epochs=2)
        prefixes = prefixes_of(retry_loops(1, seed=5)[0])
        one, other = (train(retry_loops(10), config).predictor.forecast(prefixes).steps for _ in range(2))
        assert np.array_equal(one, other)

    def test_the_callers_random_state_and_threads_are_left_alone(self) -> None:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        threads = torch.get_num_threads()
        train(retry_loops(6), TrainConfig(model=ModelConfig(8, 8), epochs=1))
        assert torch.equal(torch.rand(3), expected)
        assert torch.get_num_threads() == threads


class TestLimits:
    @pytest.mark.parametrize("count", [0, 1])
    def test_too_few_workflows_are_told(self, count: int) -> None:
        with pytest.raises(TrainError, match=f"{count} workflows have calls"):
            train(retry_loops(count), SMALL)

    def test_two_workflows_of_one_call_are_enough(self) -> None:
        predictor = train([trace_of(["a"]), trace_of(["a"])], TrainConfig(model=ModelConfig(8, 8), epochs=1)).predictor
        assert predictor.forecast(prefixes_of(trace_of(["a"]))).steps.shape == (1, 3, 2)

    def test_when_time_is_up_the_best_so_far_is_taken(self) -> None:
        done = train(retry_loops(10), TrainConfig(model=ModelConfig(8, 8), max_s=0.0))
        assert done.epochs == 0
        assert np.isfinite(done.predictor.forecast(prefixes_of(retry_loops(1)[0])).steps).all()

    def test_what_follows_an_open_workflow_is_not_trained_on(self) -> None:
        [fold, _] = make_folds([trace_of(["a", "b"], ending="open"), trace_of(["a", "b"])], 2, 2, 128, 0)
        assert fold.targets.tolist() == [[1, IGNORED, IGNORED], [IGNORED] * 3]

    def test_progress_only_rises(self) -> None:
        shares: list[float] = []
        train(retry_loops(10), TrainConfig(model=ModelConfig(8, 8), epochs=2), lambda share, text: shares.append(share))
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] < 1


class TestFolds:
    def test_the_prior_of_an_example_has_not_seen_its_own_workflow(self) -> None:
        traces = [trace_of(["a", "b"]), trace_of(["a", "c"])]
        one, other = make_folds(traces, 2, 2, 128, 0)
        assert one.paths.prior[0, 0, 1] < one.paths.prior[0, 0, 2]
        assert other.paths.prior[0, 0, 1] > other.paths.prior[0, 0, 2]


class TestCalibration:
    def test_overconfident_logits_are_cooled(self) -> None:
        generator = torch.Generator().manual_seed(0)
        targets = torch.randint(0, 4, (2000, 3), generator=generator)
        right = torch.nn.functional.one_hot(targets, 4).float()
        noisy = torch.where(torch.rand(2000, 3, 1, generator=generator) < 0.7, right, right.roll(1, dims=2))
        found = calibrate(noisy * 12, torch.full((2000, 3, 4), 0.25), targets)
        prior = torch.full((2000, 3, 4), 0.25)
        calm = found.apply(noisy * 12, prior).gather(2, targets[:, :, None]).log().mean()
        assert calm > Calibration().apply(noisy * 12, prior).gather(2, targets[:, :, None]).log().mean() + 1

    def test_where_the_chain_is_right_and_the_model_is_not_the_chain_is_followed(self) -> None:
        targets = torch.zeros(500, 3, dtype=torch.long)
        prior = torch.tensor([0.97, 0.01, 0.01, 0.01]).expand(500, 3, 4)
        assert max(calibrate(torch.randn(500, 3, 4), prior, targets).share) <= 0.1

    @pytest.mark.parametrize(
        ("temperature", "share"), [((1.0,), (1.0,)), ((0.0,) * 3, (1.0,) * 3), ((1.0,) * 3, (2.0,) * 3)]
    )
    def test_a_calibration_out_of_range_is_refused(
        self, temperature: tuple[float, ...], share: tuple[float, ...]
    ) -> None:
        with pytest.raises(ValueError, match="temperatures"):
            Calibration(temperature, share)


class TestModel:
    def test_it_has_about_as_many_numbers_as_the_paper_says(self, trained: GraphSage) -> None:
        full = train(retry_loops(4), TrainConfig(epochs=0)).predictor.model
        assert 250_000 < parameter_count(full) < 400_000

    @pytest.mark.parametrize("change", [{"width": 6}, {"signals": ("smell",)}, {"backbone": "cnn"}, {"text_size": -1}])
    def test_a_configuration_that_cannot_be_is_refused(self, change: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"width|signal|backbone"):
            ModelConfig(**change)  # type: ignore[arg-type]

    @pytest.mark.parametrize("signals", [(), ("graph",), ("path",), ("prior",), ("graph", "path", "text", "prior")])
    def test_each_signal_can_be_switched_off(self, signals: tuple[str, ...]) -> None:
        config = TrainConfig(model=ModelConfig(8, 8, text_size=4, signals=signals), epochs=1)
        forecasts = train(retry_loops(6), config).predictor.forecast(prefixes_of(retry_loops(1)[0]))
        assert np.allclose(forecasts.steps.sum(axis=2), 1, atol=1e-4)
