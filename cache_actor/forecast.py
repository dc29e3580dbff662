"""What is expected of one workflow, and the value of each of its agents' coming calls that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cache_actor.policies.base import VALUE_ONE
from predictor_actor.base import Forecasts

# An agent that is less likely than this to come at all within the horizon is left out: tables stay small.
LEAST = 1e-3
# In `Forecast.likeliest`: that the workflow ends.
END = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one workflow, after one of its calls had begun.

    Attributes:
        after: how many calls the workflow had made.
        table: v[a], the discounted expected number of coming calls of each agent within the horizon, in units of
            1/VALUE_ONE (PBKV's look-ahead value); agents of LEAST or less are left out.
        next: the probability of each agent to make the next call, likewise.
        survival: s(1)..s(K), the probability that a k-th next call is made.
        likeliest: for each k the likeliest agent, END if that is the workflow's end.
        model: who made it.
        made_at: seconds since 1970.
    """

    after: int
    table: dict[str, int]
    next: dict[str, float]
    survival: tuple[float, ...]
    likeliest: tuple[str, ...]
    model: str
    made_at: float

    def remaining(self) -> float:
        """Expected calls still to come within the horizon."""
        return sum(self.survival)


def compiled(forecasts: Forecasts, lengths: list[int], discount: float, made_at: float) -> Iterator[Forecast]:
    """Forecasts of a batch, one by one.

    Args:
        lengths: `after` of each.
        discount: gamma of the look-ahead value, above 0 and at most 1.
    """
    if not 0 < discount <= 1:
        raise ValueError(f"the discount is {discount!r}; give one above 0 and at most 1")
    steps = forecasts.steps
    weights = (discount ** np.arange(steps.shape[1], dtype=np.float32))[None, :, None]
    values = (steps[:, :, :-1] * weights).sum(axis=1)
    names = (*forecasts.agents, END)
    # For thousands a second: whole arrays are turned into lists, not one number at a time.
    rounded = np.rint(values * np.float64(VALUE_ONE)).astype(np.int64)
    rows = zip(
        lengths,
        _by_agent(rounded, values > LEAST, names),
        _by_agent(steps[:, 0, :-1], steps[:, 0, :-1] > LEAST, names),
        forecasts.survival().tolist(),
        steps.argmax(axis=2).tolist(),
        strict=True,
    )
    for after, table, coming, survival, likeliest in rows:
        likely = tuple([names[agent] for agent in likeliest])
        yield Forecast(after, table, coming, tuple(survival), likely, forecasts.model, made_at)


def _by_agent(figures: npt.NDArray[Any], kept: npt.NDArray[np.bool_], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """For each row those of the figures that are kept, by the names of their columns."""
    labels = [names[agent] for agent in np.nonzero(kept)[1].tolist()]
    values = figures[kept].tolist()
    found, start = [], 0
    for end in np.cumsum(kept.sum(axis=1)).tolist():
        found.append(dict(zip(labels[start:end], values[start:end], strict=True)))
        start = end
    return found
