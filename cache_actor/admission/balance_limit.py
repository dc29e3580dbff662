"""The limit where letting one more in would gain as much as it costs."""

from __future__ import annotations

import math
from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity

# How full the tiers may count as: contexts overlap and are partly dead, or their growth is still to come.
LOWEST_SHARE, HIGHEST_SHARE = 0.1, 20.0


@register
class Balance(PressureLimit):
    """Lets in as many as fill a share of the tiers with their contexts; idle time raises it, recomputation lowers it.

    Workflows finish in proportion to (share of the time in which the engine works) x (share of the work that is not
    done a second time). With one per cent more workflows the first grows by about the share that is idle, since prefill
    is a queue of one server; of decode, `decode` counts as idle, since a larger batch shares the reading of the
    weights. The second shrinks by about `weight` x (share of the time that recomputation takes). So the share s moves
    by `d ln s / dt = speed x (idle - weight x recomputing) / T`, where T is how long tokens stay in the cache: it takes
    so long until a change shows. Both effects are measured, so there is no climbing on noisy throughput.

    The number follows from the share by the contexts of those inside, which change faster than it: a newcomer with a
    long context leaves less room for others at once.

    Args:
        weight: how strongly recomputation reacts to the number of workflows, positive.
        speed: of the movement, positive.
        decode: share of decode time that counts as idle, 0 to 1.
        start: share of the time spent on recomputing from which there is a limit.
        now: how much contexts count as they are, 0 to 1, and not as the mean to which they grow or shrink.
    """

    name: ClassVar[str] = "balance"

    def __init__(
        self, weight: float = 5.0, speed: float = 0.3, decode: float = 1.0, start: float = 0.1, now: float = 0.5
    ) -> None:
        super().__init__()
        if not (weight > 0 and speed > 0 and start >= 0):
            raise ValueError(f"weight {weight} and speed {speed} must be positive, start {start} at least 0")
        if not (0 <= decode <= 1 and 0 <= now <= 1):
            raise ValueError(f"decode {decode} and now {now} must be from 0 to 1")
        self._weight, self._speed, self._decode, self._start, self._now = weight, speed, decode, start, now
        self._share = 1.0
        self._context = 1.0

    def explain(self) -> dict[str, float]:
        figures = {"idle": self._idle, "recomputing": self._recomputing, "gain": self._gain, "share": self._share}
        return super().explain() | figures

    @property
    def _idle(self) -> float:
        recent = self.recent
        return 1.0 - recent.busy_share + self._decode * max(0.0, recent.busy_share - recent.prefill_share)

    @property
    def _recomputing(self) -> float:
        return self.recent.prefill_share * self.recent.regret_share

    @property
    def _gain(self) -> float:
        return self._idle - self._weight * self._recomputing

    def _first(self, signals: Signals) -> float | None:
        if self._gain >= 0.0 or self._recomputing < self._start or not signals.working_set:
            return None
        self._share = min(1.0, signals.working_set / max(1, capacity(signals)))
        self._context = signals.working_set / max(1, signals.admitted)
        return self._fit(signals)

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        residence_s = self.recent.residence_s(capacity(signals))
        gain = self._gain
        if gain < 0.0 or signals.admitted >= number - 1.0:  # a number that keeps nobody out need not grow
            moved = self._share * math.exp(self._speed * gain * min(seconds, residence_s) / residence_s)
            self._share = min(HIGHEST_SHARE, max(LOWEST_SHARE, moved))
        if signals.admitted:
            context = signals.working_set / signals.admitted
            self._context += (context - self._context) * (1.0 - math.exp(-seconds / residence_s))
        return self._fit(signals)

    def _fit(self, signals: Signals) -> float:
        grown = signals.admitted * self._context
        needed = grown + self._now * (signals.working_set + signals.growth - grown)
        return max(1.0, signals.admitted + (self._share * capacity(signals) - needed) / max(1.0, self._context))
