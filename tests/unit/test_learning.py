"""Learning while serving: who gets the place, who loses it, and that nothing grows without bound."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from predictor_workflows import retry_loops, trace_of

from predictor_actor.base import AgentFacts, WorkflowTrace, prefixes_of
from predictor_actor.contest import LEAST_JUDGED, WINDOW, Candidate, Score, has_drifted, margin
from predictor_actor.evaluate import judge, outcomes
from predictor_actor.graphsage import GraphSage
from predictor_actor.learning import Learning, LearningConfig
from predictor_actor.markov import Markov
from predictor_actor.model import ModelConfig
from predictor_actor.train import TrainConfig, train

SMALL = TrainConfig(model=ModelConfig(16, 32), epochs=12, few_calls=0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def changed(count: int, seed: int) -> list[WorkflowTrace]:
    """The agents of `retry_loops` in another graph: what decides the number of rounds is who begins, as there."""
    rng = random.Random(seed)
    traces = []
    for number in range(count):
        long = rng.random() < 0.5
        agents = ["planner" if long else "reviewer", *["tester", "tester", "coder"] * (3 if long else 2)]
        traces.append(trace_of([*agents, "planner-long"], f"{seed}-{number}"))
    return traces


def serve(learning: Learning, traces: Sequence[WorkflowTrace], retrain: bool = True) -> list[float]:
    """What a replica does, workflow by workflow; the share of served forecasts of the next call that was right."""
    right = []
    for trace in traces:
        learning.introduce(trace.agents)
        served = []
        for prefix in prefixes_of(trace):
            learning.observe([prefix])
            served.append(learning.forecast([prefix]))
        steps = np.concatenate([forecasts.steps for forecasts in served if forecasts.agents == served[-1].agents])
        if len(steps) == len(served):
            right.append(float(judge(type(served[0])(served[0].agents, steps, ""), [trace]).first[:, 0].mean()))
        learning.ended([trace])
        while learning.judge(0.0):
            pass
        if retrain and (due := learning.due(0.0)) is not None:
            learning.began()
            learning.admit(train(due, SMALL).predictor, len(due), 1.0, 0.0)
    return right


@pytest.fixture(scope="module")
def trained() -> GraphSage:
    return train(retry_loops(60), SMALL).predictor


def with_scores(*losses: float) -> Candidate:
    chain = Markov(2)
    candidate = Candidate(None, chain, chain)
    candidate.scores.extend(Score(np.full(3, loss), np.zeros(3)) for loss in losses)
    return candidate


class TestContest:
    def test_few_workflows_decide_nothing(self) -> None:
        lead = margin(with_scores(*[0.1] * (LEAST_JUDGED - 1)), with_scores(*[0.9] * (LEAST_JUDGED - 1)))
        assert lead.mean == pytest.approx(0.8)
        assert not lead.beats(2.0)

    def test_a_lead_within_noise_decides_nothing(self) -> None:
        rng = np.random.default_rng(0)
        one, other = rng.normal(1.0, 0.5, 40), rng.normal(1.02, 0.5, 40)
        assert not margin(with_scores(*one), with_scores(*other)).beats(2.0)
        assert margin(with_scores(*one), with_scores(*(one + 0.1 + 0.1 * rng.random(40)))).beats(2.0)

    def test_only_workflows_that_both_were_judged_on_are_compared(self) -> None:
        lead = margin(with_scores(*[1.0] * 25), with_scores(*[9.0] * 25, *[0.5] * 25))
        assert (lead.workflows, lead.mean) == (25, -0.5)

    def test_a_loss_that_rose_is_noticed_and_one_that_wavers_is_not(self) -> None:
        rng = np.random.default_rng(0)
        assert has_drifted(with_scores(*rng.normal(0.5, 0.1, 30), *rng.normal(0.8, 0.1, 20)))
        assert not has_drifted(with_scores(*rng.normal(0.5, 0.1, 50)))
        assert not has_drifted(with_scores(*[0.5] * 10))


class TestPlace:
    def test_without_training_the_chain_serves_at_once(self) -> None:
        learning = Learning()
        assert learning.forecast(prefixes_of(retry_loops(1)[0])).model == "markov-5"
        serve(learning, retry_loops(12), retrain=False)
        assert outcomes(learning, retry_loops(5, seed=3)).figures().top1[0] > 0.7  # type: ignore[arg-type]

    def test_a_newcomer_takes_over_once_it_is_better_and_not_before(self, trained: GraphSage) -> None:
        learning = Learning()
        serve(learning, retry_loops(40), retrain=False)
        learning.began()
        learning.admit(trained, 40, 1.0, 5.0)
        serve(learning, retry_loops(LEAST_JUDGED - 1, seed=1), retrain=False)
        assert learning.model is None
        serve(learning, retry_loops(10, seed=2), retrain=False)
        assert learning.model is trained
        assert "better than markov-5 by +" in learning.status()["why"]

    def test_a_newcomer_that_is_no_better_does_not(self, trained: GraphSage) -> None:
        learning = Learning()
        serve(learning, changed(40, 0), retrain=False)
        learning.began()
        learning.admit(train(changed(4, 1), TrainConfig(model=ModelConfig(8, 8), epochs=1)).predictor, 4, 1.0, 0.0)
        serve(learning, [trace_of(["planner"])] * 30, retrain=False)
        assert learning.model is None

    def test_one_that_is_no_longer_better_than_the_chain_loses_its_place_and_the_next_is_due(
        self, trained: GraphSage
    ) -> None:
        learning = Learning()
        learning.load(trained.over(Markov(5)), "given", 0.0)
        serve(learning, changed(60, 0), retrain=False)
        assert learning.model is None
        status = learning.status()
        assert status["model"] == "markov-5"
        assert f"better than graphsage {trained.version}" in status["why"]
        assert status["counts"]["lost"] == 1
        due = learning.due(0.0)
        assert due is not None
        assert len(due) <= LearningConfig().after_drift

    def test_after_a_drift_what_is_served_recovers_within_a_hundred_workflows(self) -> None:
        learning = Learning()
        before = serve(learning, retry_loops(100))[-30:]
        after = serve(learning, changed(130, 1))
        assert np.mean(before) > 0.95
        assert np.mean(after[:20]) < 0.9
        assert np.mean(after[100:]) > 0.95

    def test_a_loaded_model_serves_at_once_over_the_chain_that_has_seen_more(self, trained: GraphSage) -> None:
        learning = Learning()
        learning.load(trained, "given", 3.0)
        forecasts = learning.forecast(prefixes_of(retry_loops(1)[0]))
        assert forecasts.model == f"graphsage {trained.version}"
        assert "coder" in forecasts.agents
        assert (learning.status()["since"], learning.status()["why"]) == (3.0, "given")

    def test_what_a_loaded_model_saw_stays_as_it_was_saved(self, trained: GraphSage) -> None:
        calls = trained.markov.graph.calls
        learning = Learning()
        learning.load(trained, "given", 0.0)
        serve(learning, retry_loops(3, seed=5), retrain=False)
        assert trained.markov.graph.calls == calls


class TestWhenToTrain:
    def test_first_at_forty_then_when_half_as_many_more_have_ended(self) -> None:
        learning = Learning()
        sizes = []
        for number, trace in enumerate(retry_loops(100), start=1):
            learning.ended([trace])
            while learning.judge(0.0):
                pass
            if learning.due(0.0) is not None:
                sizes.append(number)
                learning.began()
                assert learning.due(0.0) is None
                learning.admit(train([trace, trace], TrainConfig(ModelConfig(8, 8), epochs=0)).predictor, 2, 1.0, 0.0)
        assert sizes == [40, 60, 90]

    def test_what_waits_to_be_judged_is_not_trained_on(self) -> None:
        learning = Learning(LearningConfig(first=2))
        learning.ended(retry_loops(10))
        assert learning.due(0.0) is None
        learning.judge(0.0)
        assert len(learning.due(0.0) or ()) == LearningConfig().judged_at_once

    def test_a_failed_training_is_tried_again_after_ever_longer_pauses(self) -> None:
        learning = Learning(LearningConfig(first=2, retry_s=10, max_retry_s=25))
        learning.replay(retry_loops(4))
        now, pauses = 0.0, []
        for _ in range(3):
            assert learning.due(now) is not None
            learning.began()
            learning.failed("no memory", 4, 0.1, now)
            pause = next(pause for pause in range(100) if learning.due(now + pause) is not None)
            pauses.append(pause)
            now += pause
        assert pauses == [10, 20, 25]
        assert learning.status()["counts"]["failed"] == 3
        assert learning.status()["last_training"]["result"] == "failed: no memory"


class TestBounded:
    @pytest.mark.parametrize("count", [200])
    def test_nothing_grows_beyond_its_limit(self, count: int) -> None:
        learning = Learning(LearningConfig(max_traces=20, max_waiting=8))
        learning.introduce({f"agent-{number}": AgentFacts(number) for number in range(2000)})
        learning.ended(retry_loops(count))
        assert learning.status()["waiting"] == 8
        assert learning.status()["counts"]["not_judged"] == count - 8
        while learning.judge(0.0):
            pass
        status = learning.status()
        assert status["traces"] == 20
        assert status["agents"] == 512
        assert status["candidates"]["baseline"]["workflows"] <= WINDOW

    def test_traces_are_bounded_in_bytes_too(self) -> None:
        learning = Learning(LearningConfig(max_trace_bytes=50_000))
        learning.replay([trace_of(["a"] * 10, hidden=b"12" * 1000)] * 20)
        assert learning.status()["traces"] == 2

    @pytest.mark.parametrize("trace", [trace_of([]), trace_of(["a"], ending="open")])
    def test_what_has_no_calls_or_no_end_teaches_nothing(self, trace: WorkflowTrace) -> None:
        learning = Learning()
        learning.ended([trace])
        assert learning.status()["waiting"] == 0
