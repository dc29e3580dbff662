"""Who serves: candidates judged on the same workflows, one by one, and compared in pairs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from predictor_actor.base import HORIZON, Predictor, WorkflowTrace
from predictor_actor.evaluate import outcomes
from predictor_actor.graphsage import GraphSage

# Workflows that a candidate's accuracy is told of, and that decide.
WINDOW = 50
# Fewer decide nothing.
LEAST_JUDGED = 20
# Standard errors of the paired mean difference: to gain the place, and for the baseline to take it back, which errs on
# the side of what needs no training.
TO_GAIN = 2.0
TO_LOSE = 1.0
# By so many standard errors a candidate's loss has risen when what it learned is taken to hold no longer.
TO_DRIFT = 3.0


@dataclass(frozen=True, slots=True)
class Score:
    """One workflow: means over its calls of the loss (nats) and of whether the likeliest came, for k = 1..K."""

    loss: npt.NDArray[np.float64]
    right: npt.NDArray[np.float64]


@dataclass(slots=True)
class Candidate:
    """One who may serve.

    Attributes:
        model: what was trained; None: the Markov chain itself.
        serving: forecasts over the chain that observes calls as they begin.
        judged: the same over the chain that knows only workflows that have been judged.
        scores: of the latest WINDOW workflows, on which it was not trained. Those of two candidates end in the same
            workflow.
    """

    model: GraphSage | None
    serving: Predictor
    judged: Predictor
    scores: deque[Score] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def name(self) -> str:
        """As `Forecasts.model`."""
        return self.serving.name if self.model is None else f"{self.model.name} {self.model.version}"

    def judge(self, traces: Sequence[WorkflowTrace]) -> None:
        """Adds the scores of workflows that its chain has not learned yet."""
        found = outcomes(self.judged, traces)
        for number in range(len(traces)):
            rows = found.workflow == number
            if rows.any():
                self.scores.append(Score(found.loss[rows].mean(axis=0), found.first[rows].mean(axis=0)))

    def recent(self) -> dict[str, object]:
        """Its recent accuracy: means over workflows by k; empty lists if none was judged."""
        judged = bool(self.scores)
        return {
            "model": self.name,
            "workflows": len(self.scores),
            "top1": np.mean([score.right for score in self.scores], axis=0).round(4).tolist() if judged else [],
            "nll": np.mean([score.loss for score in self.scores], axis=0).round(4).tolist() if judged else [],
        }


@dataclass(frozen=True, slots=True)
class Margin:
    """How much better one candidate is than another on the latest workflows that both were judged on.

    Attributes:
        mean: of the paired differences of the loss, nats; positive: it is better.
        error: standard error of that mean.
    """

    workflows: int
    mean: float
    error: float

    def beats(self, errors: float) -> bool:
        """Whether the lead is more than so many standard errors, on enough workflows."""
        return self.workflows >= LEAST_JUDGED and self.mean > errors * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.error:.3f} nats a call on {self.workflows} workflows"


def margin(one: Candidate, other: Candidate) -> Margin:
    """The lead of one candidate over another."""
    count = min(len(one.scores), len(other.scores))
    if count < 2:
        return Margin(count, 0.0, math.inf)
    lead = _losses(other, count) - _losses(one, count)
    return Margin(count, float(lead.mean()), float(lead.std(ddof=1)) / math.sqrt(count))


def has_drifted(candidate: Candidate) -> bool:
    """Whether its latest LEAST_JUDGED workflows went clearly worse than those before them."""
    losses = _losses(candidate, len(candidate.scores))
    before, lately = losses[:-LEAST_JUDGED], losses[-LEAST_JUDGED:]
    if len(before) < LEAST_JUDGED:
        return False
    error = math.sqrt(before.var(ddof=1) / len(before) + lately.var(ddof=1) / len(lately))
    return float(lately.mean() - before.mean()) > TO_DRIFT * error


def _losses(candidate: Candidate, count: int) -> npt.NDArray[np.float64]:
    latest = list(candidate.scores)[len(candidate.scores) - count :]
    losses: npt.NDArray[np.float64] = np.array([score.loss for score in latest]).reshape(count, HORIZON).mean(axis=1)
    return losses
