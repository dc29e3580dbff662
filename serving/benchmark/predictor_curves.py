"""How good predictors are by how much they have seen, by how noisy it was, and while the call graph changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor_actor.base import Predictor, WorkflowTrace
from predictor_actor.evaluate import Outcomes, joined, outcomes
from predictor_actor.train import TrainConfig, train
from serving.benchmark.disturbed import with_noise, with_other_graph
from serving.benchmark.predictor_study import MODEL, Progress, StudyError, best_chain, learned_chains, split, told_part

RETRAINED = f"{MODEL} retrained"
# A predictor has recovered when it is right this often, measured by how often it was right before.
RECOVERED = 0.95

Curve = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to draw.

    Attributes:
        sizes: numbers of workflows to learn from, as far as there are so many; all there are is one more.
        noises: shares of the calls learned from that another agent makes; what is tested on has no noise.
        window: over so many workflows accuracy is averaged in the drift, of few workflows over a tenth of them.
        test_share: the share of workflows that is kept for the test.
        seeds: how many times all is done, with seeds 0, 1, …
    """

    sizes: tuple[int, ...] = (5, 10, 20, 50, 100, 200, 500, 1000)
    noises: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    window: int = 50
    test_share: float = 0.25
    seeds: int = 1
    config: TrainConfig = field(default_factory=TrainConfig)


def run_curves(
    traces: Sequence[WorkflowTrace], plan: Plan, progress: Progress = lambda share, text: None
) -> dict[str, Any]:
    """Trains and tests at every point, and gives the figures as they go into JSON.

    Raises:
        StudyError: there are too few workflows.
    """
    traces = [trace for trace in traces if trace.calls]
    if len(traces) < 8:
        raise StudyError(f"{len(traces)} workflows have calls; give at least 8, a quarter of them to begin with")
    most = len(split(traces, "workflow", plan.test_share, 0)[0])
    sizes = [*(size for size in plan.sizes if size < most), most]
    by_size = [(size, 0.0) for size in sizes]
    by_noise = [(most, noise) for noise in plan.noises]
    points = list(dict.fromkeys(by_size + by_noise))
    drift = _Drift.of(traces, plan.window)
    found: dict[tuple[int, float], dict[str, list[Outcomes]]] = {point: {} for point in points}
    watched: dict[str, list[npt.NDArray[np.float64]]] = {}
    parts = plan.seeds * (len(points) + drift.trainings)
    done = 0

    def next_part(what: str) -> Progress:
        nonlocal done
        done += 1
        return told_part(progress, (done - 1) / parts, 1 / parts, what)

    for seed in range(plan.seeds):
        config = replace(plan.config, seed=seed)
        learning, test = split(traces, "workflow", plan.test_share, seed)
        for size, noise in points:
            seen = with_noise(_some(learning, size, seed), noise, seed)
            told = next_part(f"{size} workflows, {noise:.0%} noise")
            predictors = [train(seen, config, told).predictor, *learned_chains(seen)]
            for predictor in predictors:
                found[size, noise].setdefault(predictor.name, []).append(outcomes(predictor, test))
        for name, right in drift.watch(traces, config, next_part).items():
            watched.setdefault(name, []).append(right)
    return {
        "workflows": len(traces),
        "calls": sum(len(trace.calls) for trace in traces),
        "agents": len({call.agent for trace in traces for call in trace.calls}),
        "test_share": plan.test_share,
        "seeds": plan.seeds,
        "sizes": [_point(size, found[size, noise]) for size, noise in by_size],
        "noise": [_point(noise, found[size, noise]) for size, noise in by_noise],
        "drift": drift.figures({name: np.sum(each, axis=0) for name, each in watched.items()}),
    }


def _some(traces: Sequence[WorkflowTrace], count: int, seed: int) -> list[WorkflowTrace]:
    """So many of the traces in their order; with fewer, some of the same."""
    places = random.Random(seed).sample(range(len(traces)), len(traces))[:count]
    return [traces[place] for place in sorted(places)]


def _point(at: float, found: dict[str, list[Outcomes]]) -> dict[str, Any]:
    predictors = {name: asdict(joined(rounds).figures()) for name, rounds in found.items()}
    chains = [name for name in predictors if name != MODEL]
    return {"at": at, "predictors": predictors, "best_chain": best_chain(found, chains)}


@dataclass(frozen=True, slots=True)
class _Drift:
    """Workflows one after another, whose call graph changes half-way.

    Attributes:
        total: workflows.
        start: from the one of this number on it is watched; those before it are learned from.
        window: see `Plan`; a predictor is trained anew as often, on the latest two windows.
    """

    total: int
    start: int
    window: int

    @classmethod
    def of(cls, traces: Sequence[WorkflowTrace], window: int) -> _Drift:
        total = len(traces)
        return cls(total, total // 4, min(window, max(1, total // 10)))

    @property
    def change(self) -> int:
        return self.total // 2

    @property
    def trainings(self) -> int:
        return 1 + len(range(self.start + self.window, self.total, self.window))

    def watch(
        self, traces: Sequence[WorkflowTrace], config: TrainConfig, next_part: Callable[[str], Progress]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """For each predictor and workflow watched how many first guesses were right, of how many. Each workflow is
        forecast as a whole before anything is learned from it."""
        ordered = sorted(traces, key=lambda trace: trace.started_at)
        stream = ordered[: self.change] + with_other_graph(ordered, config.seed)[self.change :]
        trained = train(stream[: self.start], config, next_part("before the drift")).predictor
        predictors: dict[str, Predictor] = {MODEL: trained, RETRAINED: copy.deepcopy(trained)}
        predictors |= {chain.name: chain for chain in learned_chains(stream[: self.start])}
        right: dict[str, list[tuple[int, int]]] = {name: [] for name in predictors}
        for place in range(self.start, self.total):
            if place > self.start and (place - self.start) % self.window == 0:
                latest = stream[max(0, place - 2 * self.window) : place]
                predictors[RETRAINED] = train(latest, config, next_part(f"drift, workflow {place}")).predictor
            for name, predictor in predictors.items():
                first = outcomes(predictor, [stream[place]]).first[:, 0]
                right[name].append((int(first.sum()), len(first)))
                predictor.learn(stream[place])
        return {name: np.array(each, np.float64) for name, each in right.items()}

    def figures(self, watched: dict[str, npt.NDArray[np.float64]]) -> dict[str, Any]:
        rolling = {name: _rolling(right, self.window) for name, right in watched.items()}
        return {
            "window": self.window,
            "trained_on": self.start,
            "change_at": self.change,
            "at": list(range(self.start + self.window, self.total + 1)),
            "top1": rolling,
            "before": {name: top1[self._places_before - 1] for name, top1 in rolling.items()},
            "least": {name: min(top1[self._places_before :]) for name, top1 in rolling.items()},
            "end": {name: top1[-1] for name, top1 in rolling.items()},
            "recovered_after": {name: self._recovered(top1) for name, top1 in rolling.items()},
        }

    @property
    def _places_before(self) -> int:
        """How many windows end before the change."""
        return self.change - self.start - self.window + 1

    def _recovered(self, top1: Sequence[float]) -> int | None:
        """After how many workflows of the new graph a window of them alone was as good as before; None: never."""
        enough = RECOVERED * top1[self._places_before - 1]
        after = top1[self._places_before + self.window - 1 :]
        return next((self.window + more for more, share in enumerate(after) if share >= enough), None)


def _rolling(right: npt.NDArray[np.float64], window: int) -> list[float]:
    sums = np.cumsum(np.concatenate([np.zeros((1, 2)), right]), axis=0)
    over = sums[window:] - sums[:-window]
    shares: list[float] = (over[:, 0] / np.maximum(over[:, 1], 1)).tolist()
    return shares
