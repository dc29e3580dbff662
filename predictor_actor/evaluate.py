"""How good forecasts are: what every predictor's table shows, from what came true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor_actor.base import HORIZON, Forecasts, Predictor, WorkflowTrace, prefixes_of

# A forecast that held what came for impossible counts as if it had given it this much.
LEAST = 1e-4
BINS = 10

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of S forecasts. All arrays have the shape (S, K) but for `workflow`, (S,).

    Attributes:
        first, second: the likeliest was right; one of the two likeliest was.
        loss: -log of the probability of what came, in nats, at most -log(LEAST).
        confidence: the probability of the likeliest.
        alive, went_on: the forecast survival s(k), and whether a k-th next call was made.
        workflow: the number of the workflow it belongs to.
    """

    first: npt.NDArray[np.bool_]
    second: npt.NDArray[np.bool_]
    loss: Array
    confidence: Array
    alive: Array
    went_on: npt.NDArray[np.bool_]
    workflow: npt.NDArray[np.int64]

    def figures(self) -> Figures:
        """The means over all forecasts."""
        if not len(self.workflow):
            nothing = [float("nan")] * HORIZON
            return Figures(nothing, nothing, nothing, nothing, nothing, 0)
        return Figures(
            self.first.mean(axis=0).tolist(),
            self.second.mean(axis=0).tolist(),
            self.loss.mean(axis=0).tolist(),
            [_calibration_error(self.confidence[:, k], self.first[:, k]) for k in range(HORIZON)],
            ((self.alive - self.went_on) ** 2).mean(axis=0).tolist(),
            len(self.workflow),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Each has one value for each k = 1..K.

    Attributes:
        top1, top2: share of forecasts whose likeliest, or one of whose two likeliest, was right; the end counts as one
            more agent, and after the end comes the end.
        nll: mean negative log likelihood, nats.
        ece: expected calibration error: how far the share that was right is from the confidence, over BINS bins.
        brier: mean squared error of the survival s(k).
        calls: how many forecasts.
    """

    top1: list[float]
    top2: list[float]
    nll: list[float]
    ece: list[float]
    brier: list[float]
    calls: int


def outcomes(predictor: Predictor, traces: Sequence[WorkflowTrace]) -> Outcomes:
    """Forecasts after every call of the traces, and what became of them.

    What comes after the last call of a workflow that had not ended is not known and not asked for.
    """
    return judge(predictor.forecast([prefix for trace in traces for prefix in prefixes_of(trace)]), traces)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """Those of several evaluations, their workflows numbered on."""
    shift, workflows = 0, []
    for part in parts:
        workflows.append(part.workflow + shift)
        shift += int(part.workflow.max(initial=-1)) + 1
    fields = ("first", "second", "loss", "confidence", "alive", "went_on")
    arrays = {field: np.concatenate([getattr(part, field) for part in parts]) for field in fields}
    return Outcomes(**arrays, workflow=np.concatenate(workflows))


def judge(forecasts: Forecasts, traces: Sequence[WorkflowTrace]) -> Outcomes:
    """Sets forecasts, one after each call of each trace in order, beside what came."""
    places = {name: place for place, name in enumerate(forecasts.agents)}
    end = len(places)
    targets: list[list[int]] = []
    known: list[bool] = []
    workflow: list[int] = []
    for number, trace in enumerate(traces):
        coming = [places.get(call.agent, -1) for call in trace.calls]
        for place in range(1, len(coming) + 1):
            after = coming[place : place + HORIZON]
            known.append(len(after) == HORIZON or trace.ending != "open")
            targets.append(after + [end] * (HORIZON - len(after)))
            workflow.append(number)
    target = np.array(targets, np.int64).reshape(-1, HORIZON)[known]
    steps = forecasts.steps[np.array(known, bool)]
    likely = np.argsort(-steps, axis=2, kind="stable")[:, :, :2]
    given = np.take_along_axis(steps, np.maximum(target, 0)[:, :, None], axis=2)[:, :, 0]
    return Outcomes(
        first=likely[:, :, 0] == target,
        second=(likely == target[:, :, None]).any(axis=2),
        loss=-np.log(np.maximum(np.where(target < 0, 0.0, given), LEAST)),
        confidence=steps.max(axis=2, initial=0.0).astype(np.float64),
        alive=1.0 - steps[:, :, -1].astype(np.float64),
        went_on=target != end,
        workflow=np.array(workflow, np.int64)[known],
    )


def _calibration_error(confidence: Array, right: npt.NDArray[np.bool_]) -> float:
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(bins))
