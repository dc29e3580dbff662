"""How good a predictor is on given traces: the model, what it loses without each signal, and the baselines."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from predictor_actor.base import HORIZON, Predictor, WorkflowTrace
from predictor_actor.baselines import Oracle, Transition, Uniform
from predictor_actor.evaluate import Outcomes, joined, outcomes
from predictor_actor.markov import Markov
from predictor_actor.model import SIGNALS, parameter_count
from predictor_actor.train import TrainConfig, train
from serving.benchmark.bootstrap import estimate

MODEL = "graphsage"
# What the model must beat: chains of the orders that papers report.
CHAINS = ("markov-1", "markov-2")
# What the model is also trained without, or as.
ABLATIONS = (*SIGNALS, "r-gcn")

Progress = Callable[[float, str], None]


class StudyError(ValueError):
    """The traces are too few for what was asked."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to try.

    Attributes:
        split: "workflow": the test's workflows are drawn at random, others for each seed; "time": they are the latest.
        test_share: the share of workflows that is kept for the test.
        seeds: how many times all is done, with seeds 0, 1, …
        ablations: which of ABLATIONS are tried too: the model without a signal, or with R-GCN.
    """

    split: Literal["workflow", "time"] = "workflow"
    test_share: float = 0.25
    seeds: int = 1
    ablations: tuple[str, ...] = ()
    config: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share is {self.test_share}; give a share between 0 and 1")
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; give at least 1")
        unknown = [name for name in self.ablations if name not in ABLATIONS]
        if unknown:
            raise ValueError(f"unknown ablation {unknown[0]!r}; choose from {', '.join(ABLATIONS)}")


def run_study(
    traces: Sequence[WorkflowTrace], study: Study, progress: Progress = lambda share, text: None
) -> dict[str, Any]:
    """Trains and tests, and gives the figures as they go into JSON.

    Raises:
        StudyError: there are too few workflows to train on some and test on others.
    """
    traces = [trace for trace in traces if trace.calls]
    if len(traces) < 4:
        raise StudyError(f"{len(traces)} workflows have calls; give at least 4, to train on some and test on others")
    configs = {MODEL: study.config} | _ablations(study)
    found: dict[str, list[Outcomes]] = {}
    seconds: dict[str, list[float]] = {}
    parts = study.seeds * len(configs)
    done = 0
    for seed in range(study.seeds):
        learning, test = split(traces, study.split, study.test_share, seed)
        for name, predictor in _baselines(learning, test).items():
            found.setdefault(name, []).append(outcomes(predictor, test))
        for name, config in configs.items():
            told = told_part(progress, done / parts, 1 / parts, f"seed {seed}, {name}")
            trained = train(learning, replace(config, seed=seed), told)
            found.setdefault(name, []).append(outcomes(trained.predictor, test))
            seconds.setdefault(name, []).append(trained.seconds)
            if name == MODEL:
                parameters = parameter_count(trained.predictor.model)
            done += 1
    return {
        "workflows": len(traces),
        "calls": sum(len(trace.calls) for trace in traces),
        "agents": len({call.agent for trace in traces for call in trace.calls}),
        "split": study.split,
        "test_share": study.test_share,
        "seeds": study.seeds,
        "parameters": parameters,
        "train_s": float(np.median(seconds[MODEL])),
        "predictors": {name: _figures(each) for name, each in found.items()},
        "best_chain": best_chain(found, CHAINS),
        "gains": {name: [gain(found, name, k) for k in range(HORIZON)] for name in configs if name != MODEL},
    }


def split(
    traces: Sequence[WorkflowTrace], how: Literal["workflow", "time"], test_share: float, seed: int
) -> tuple[list[WorkflowTrace], list[WorkflowTrace]]:
    """What to learn from and what to test on, by whole workflows, both in the order of time."""
    ordered = sorted(traces, key=lambda trace: trace.started_at)
    count = min(max(1, round(len(ordered) * test_share)), len(ordered) - 2)
    places = range(len(ordered) - count, len(ordered))
    if how == "workflow":
        places = random.Random(seed).sample(range(len(ordered)), count)  # type: ignore[assignment]
    chosen = set(places)
    learning = [trace for place, trace in enumerate(ordered) if place not in chosen]
    return learning, [trace for place, trace in enumerate(ordered) if place in chosen]


def _baselines(learning: Sequence[WorkflowTrace], test: Sequence[WorkflowTrace]) -> dict[str, Predictor]:
    """Each having learned, and the oracle, which knows the test."""
    counting: list[Predictor] = [Uniform(), Transition()]
    for predictor in counting:
        for trace in learning:
            predictor.learn(trace)
    return {predictor.name: predictor for predictor in (*counting, *learned_chains(learning), Oracle(test))}


def learned_chains(learning: Sequence[WorkflowTrace]) -> list[Markov]:
    """Chains of orders 1 to 3, each having learned."""
    chains = [Markov(order) for order in (1, 2, 3)]
    for chain in chains:
        for trace in learning:
            chain.learn(trace)
    return chains


def _ablations(study: Study) -> dict[str, TrainConfig]:
    """A signal that is not used cannot be left out."""
    model = study.config.model
    used = [signal for signal in model.signals if signal != "text" or model.text_size]
    changed = {
        f"without {signal}": replace(model, signals=tuple(other for other in used if other != signal))
        for signal in used
        if signal in study.ablations
    }
    if "r-gcn" in study.ablations:
        changed["r-gcn"] = replace(model, backbone="rgcn")
    return {name: replace(study.config, model=other) for name, other in changed.items()}


def _figures(rounds: Sequence[Outcomes]) -> dict[str, Any]:
    """The means over all forecasts, and 95 % intervals of the shares that were right."""
    figures = asdict(joined(rounds).figures())
    sums = [_sums(each, each.first) for each in rounds]
    figures["top1_interval"] = [_share(sums, k) for k in range(HORIZON)]
    return figures


def best_chain(found: Mapping[str, list[Outcomes]], chains: Sequence[str]) -> list[dict[str, Any]]:
    """For each k the best chain, and by how much the model's share of right forecasts is above it, with 95 %."""
    result = []
    for k in range(HORIZON):
        best = max(chains, key=lambda name: joined(found[name]).figures().top1[k])
        result.append({"k": k + 1, "name": best, "gain": gain(found, best, k)})
    return result


def gain(found: Mapping[str, list[Outcomes]], name: str, k: int) -> list[float] | None:
    """By how much the model's share of right forecasts is above another's on the same workflows, with 95 %."""
    pairs = zip(found[MODEL], found[name], strict=True)
    return _share([_sums(ours, ours.first.astype(np.float64) - theirs.first) for ours, theirs in pairs], k)


def _sums(outcome: Outcomes, values: Any) -> Any:
    """Sums over each workflow, shape (workflows, K + 1), the last how many forecasts it has."""
    columns = np.concatenate([np.asarray(values, np.float64), np.ones((len(outcome.workflow), 1))], axis=1)
    sums = np.zeros((int(outcome.workflow.max(initial=-1)) + 1, columns.shape[1]))
    np.add.at(sums, outcome.workflow, columns)
    return sums[sums[:, -1] > 0]


def _share(sums: Sequence[Any], k: int) -> list[float] | None:
    return estimate(sums, [lambda total: total[..., k] / total[..., -1]])[0]


def told_part(progress: Progress, start: float, length: float, what: str) -> Progress:
    """What hears of a part of the work, and tells it as that share of the whole."""
    return lambda share, text: progress(start + share * length, f"{what}: {text}")
