"""The limit at which finished workflows cost the least time, by a curve of misses that is read off the misses."""

from __future__ import annotations

import math
from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity
from cache_actor.admission.recent import Recent
from cache_actor.admission.slope import Slope

# The number moves to what the curve says in this share of the time that tokens stay in the cache.
LAG = 0.5
# The curve is believed so far: from a sixth more workflows than there were to a third of them.
TIMES_FEWER: list[float] = [0.85 * (3.0 / 0.85) ** (step / 60) for step in range(61)]
# Misses are never believed to be rarer than e to the minus the one, or more frequent than e to the minus the other.
RAREST, MOST_FREQUENT = 7.0, 0.05
# How misses react is learned over so many times as long as tokens stay in the cache, and believed half when the
# logarithm of the number has had this variance. In per cent for a per cent, it is at least and at most so much.
MEMORY, TRUST = 8.0, 0.03
LOWEST, HIGHEST = 1.0, 5.0
# An engine that works for a lesser share of the time bears more than it has: nobody need wait. The time is so many
# seconds, or as long as tokens stay in the cache: over less, each burst that it works off by itself would be too much.
BUSY, BUSY_S = 0.95, 30.0
# With a lesser share of what is computed there is nothing to learn from.
LEAST_REGRET = 0.01


@register
class MissCurve(PressureLimit):
    """Lets in as many as take the least time for the same work, by what more or fewer of them would miss.

    Of n workflows, as many as there were lately, the engine spends the share r of its time on computing tokens again
    and the share d on decode or idle. With z times fewer inside, the same work would take about
    `r m(z) / m(1) + d z^a` of the time, and what is left. Decode and idle time grow, since smaller batches read the
    weights as often; a = (1 - calls that wait in the engine / n)^2, since those that wait add nothing to a batch. The
    share m of the tokens that could have been found and were not shrinks. If gaps between two uses are spread at
    random, what is used again after a gap in which the cache was renewed is missed: m(1) = e^-L, and
    m(z) = e^(-L z^k) (Che et al. 2002, with k = 1). Thus L, how full the cache is, and how m reacts to the number both
    come of the share of misses that is measured. A real k is larger, as workflows use their contexts in cycles and
    misses make more misses: `steep`, and where nearly all is missed whatever keeps kL at `least`. That much is
    expected; how recomputation has followed the number as it went up and down corrects kL.

    The best z gives the number, as long as the engine has hardly any idle time; one that has bears more, whatever it
    computes again. The number is for contexts as they were on the mean; while those inside are longer it is less.

    Args:
        steep: k, at least 1.
        least: how much m is expected to react at least, in per cent for a per cent of workflows, positive.
        start: share of the time spent on computing again from which there is a limit, at least 0.
        now: how much contexts count as they are, 0 to 1, and not as they were on the mean.
    """

    name: ClassVar[str] = "miss-curve"

    def __init__(self, steep: float = 1.5, least: float = 1.25, start: float = 0.03, now: float = 0.5) -> None:
        super().__init__()
        if not (steep >= 1 and least > 0 and start >= 0):
            raise ValueError(f"steep {steep} must be at least 1, least {least} positive, start {start} at least 0")
        if not 0 <= now <= 1:
            raise ValueError(f"now {now} must be from 0 to 1")
        self._steep, self._least, self._start, self._now = steep, least, start, now
        self._found = 1.0
        self._slope = Slope()
        self._longer = Recent()

    def observe(self, signals: Signals) -> int | None:
        before = self._before
        if before is not None and signals.at != before.at:
            memory_s = max(BUSY_S, self.recent.residence_s(capacity(signals)))
            if not self._longer.add(before, signals, memory_s):
                self._longer = Recent()
        limit = super().observe(signals)
        recent = self.recent
        if before is not None and recent.seconds > 0.0 and recent.admitted >= 1.0 and signals.at > before.at:
            again = recent.regret / max(1.0, recent.computed - recent.regret)
            if again > LEAST_REGRET:
                memory_s = MEMORY * recent.residence_s(capacity(signals))
                self._slope.take(math.log(recent.admitted), math.log(again), signals.at - before.at, memory_s)
        return limit

    def explain(self) -> dict[str, float]:
        recent = self.recent
        figures = {
            "busy": self._longer.busy_share,
            "recomputing": self._recomputing,
            "missed": recent.missed_share,
            "inside": recent.admitted,
        }
        return super().explain() | figures | {"best": self._best(), "reaction": self._reaction}

    @property
    def _recomputing(self) -> float:
        return self.recent.prefill_share * self.recent.regret_share

    @property
    def _fill(self) -> float:
        """L, how full the cache is."""
        return min(RAREST, max(MOST_FREQUENT, -math.log(max(self.recent.missed_share, 1e-9))))

    @property
    def _reaction(self) -> float:
        """kL, by how many per cent recomputation grows with one per cent more workflows."""
        expected = max(self._steep * self._fill, self._least)
        return min(max(HIGHEST, expected), max(LOWEST, self._slope.value(expected, TRUST)))

    def _first(self, signals: Signals) -> float | None:
        best = self._best()
        if self._recomputing < self._start or self._longer.busy_share < BUSY or signals.admitted <= best:
            return None
        self._found = best
        return self._fit(signals)

    def _is_unneeded(self, signals: Signals) -> bool:
        return self.number is not None and signals.admitted < self.number - 1.0 and self._recomputing < self._start / 2

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        best = self._best()
        if best < self._found or signals.admitted >= number - 1.0:  # a number that keeps nobody out need not grow
            lag_s = LAG * self.recent.residence_s(capacity(signals))
            self._found *= math.pow(best / self._found, 1.0 - math.exp(-seconds / lag_s))
        return self._fit(signals)

    def _best(self) -> float:
        """The number by the curve, at least 1; while the engine is not busy, the most that is believed."""
        recent = self.recent
        if self._longer.busy_share < BUSY:
            return max(1.0, recent.admitted / TIMES_FEWER[0])
        again, other = self._recomputing, 1.0 - recent.prefill_share
        fill = self._fill
        steep = self._reaction / fill
        waiting = min(1.0, recent.waiting / max(1.0, recent.admitted))
        active = (1.0 - waiting) ** 2

        def cost(times_fewer: float) -> float:
            missed = math.exp(fill * (1.0 - math.pow(times_fewer, steep)))
            return again * missed + other * math.pow(times_fewer, active)

        return max(1.0, recent.admitted / min(TIMES_FEWER, key=cost))

    def _fit(self, signals: Signals) -> float:
        context = (signals.working_set + signals.growth) / max(1, signals.admitted)
        if context <= 0 or self.recent.context <= 0:
            return max(1.0, self._found)
        return max(1.0, self._found * math.pow(self.recent.context / context, self._now))
