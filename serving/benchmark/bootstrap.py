"""How sure a figure is: 95 % intervals by a two-stage bootstrap over rounds and the workflows in them.

Workflows of one round share an engine and its moods, so they are not independent. Each resample draws rounds with
replacement and, in each drawn round, as many workflows as it has, with replacement (Davison and Hinkley, "Bootstrap
Methods and their Application", 1997, section 3.8). When rounds hardly differ, the interval is somewhat wider than it
had to be; of a single round it holds nothing of how rounds differ. Both are what an honest "within noise" wants.
The interval's ends are the 2.5 % and 97.5 % percentiles of the resampled figure (Efron's percentile method).

How often the interval held the truth on made-up ratios of .8 (20 workflows a round with a spread of .2, 200 trials):

| spread of the rounds | 1 round | 2 | 3 | 5 | 8 |
|---|---|---|---|---|---|
| 0 | .91 | .95 | .98 | .97 | .99 |
| .05 | .83 | .90 | .92 | .91 | .97 |
| .1 | .59 | .80 | .88 | .86 | .95 |

Every figure is a function of sums (a mean is a sum over a count, a ratio of means is made of four sums), so a resample
is only a weight for each workflow: the weights of a round are drawn as one multinomial, and the sums of all resamples
are one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20260701
# Resamples of very few workflows differ too little. With five, not even all of them agreeing is beyond chance at 95 %
# (sign test: 2 · 0.5⁵ = 6 %); with six it is (3 %).
FEWEST = 6

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Sums, shape (…, columns) -> the figure, shape (…)."""


def resampled_sums(rounds: Sequence[Array], seed: int = SEED, resamples: int = RESAMPLES) -> Array:
    """Sums of the columns in each resample.

    Args:
        rounds: one array a round, shape (workflows of the round, columns); rounds without workflows are skipped.

    Returns:
        shape (resamples, columns).
    """
    rounds = [np.asarray(each, dtype=np.float64) for each in rounds if len(each)]
    generator = np.random.default_rng(seed)
    times_drawn = generator.multinomial(len(rounds), np.full(len(rounds), 1 / len(rounds)), size=resamples)
    sums = np.zeros((resamples, rounds[0].shape[1]))
    for number, values in enumerate(rounds):
        size = len(values)
        weights = generator.multinomial(times_drawn[:, number] * size, np.full(size, 1 / size))
        sums += weights @ values
    return sums


def estimate(rounds: Sequence[Array], statistics: Sequence[Statistic]) -> list[list[float] | None]:
    """Each statistic as [value, low, high] of its 95 % interval; None where it has no value (nothing to divide by),
    and everywhere if there are fewer than `FEWEST` workflows."""
    filled = [each for each in rounds if len(each)]
    if sum(map(len, filled)) < FEWEST:
        return [None] * len(statistics)
    total = np.concatenate(filled).sum(axis=0)
    sums = resampled_sums(filled)
    with np.errstate(divide="ignore", invalid="ignore"):
        return [interval(float(statistic(total)), statistic(sums)) for statistic in statistics]


def interval(value: float, resampled: Array) -> list[float] | None:
    """[value, low, high]; resamples in which the figure does not exist are left out."""
    finite = resampled[np.isfinite(resampled)]
    if not math.isfinite(value) or not finite.size:
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return [value, float(low), float(high)]


def percentile_ratio(before: Array, after: Array, percent: float, seed: int = SEED) -> list[float] | None:
    """Ratio of a percentile of two unpaired samples, [ratio, low, high]; each sample is resampled on its own.
    None if either has fewer than `FEWEST`."""
    if min(before.size, after.size) < FEWEST:
        return None
    generator = np.random.default_rng(seed)

    def resampled(sample: Array) -> Array:
        size = max(1, min(RESAMPLES, 4_000_000 // sample.size))
        drawn = sample[generator.integers(0, sample.size, (size, sample.size))]
        percentiles: Array = np.percentile(drawn, percent, axis=1)
        return percentiles

    one, other = resampled(before), resampled(after)
    count = min(one.size, other.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.percentile(after, percent) / np.percentile(before, percent))
        return interval(value, other[:count] / one[:count])


def excludes(figure: Sequence[float] | None, neutral: float) -> bool:
    """Whether [value, low, high] lies beyond noise: its interval does not contain the neutral value (1, or 0)."""
    return figure is not None and not figure[1] <= neutral <= figure[2]
