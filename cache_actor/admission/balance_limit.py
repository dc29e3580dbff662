"""The limit where letting one more in would gain as much as it costs."""

from __future__ import annotations

import math
from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity, fitting


@register
class Balance(PressureLimit):
    """Weighs idle time against recomputation, both measured, instead of following throughput, which is noisy.

    Workflows finish in proportion to (share of the time in which the engine works) x (share of the work that is not
    done a second time). With one per cent more workflows the first grows by about the share that is idle, since prefill
    is a queue of one server; of decode, `decode` counts as idle, since a larger batch shares the reading of the
    weights. The second shrinks by about `weight` x (share of the time that recomputation takes). So the number n of
    workflows moves by `d ln n / dt = speed x (idle - weight x recomputing) / T`, where T is how long tokens stay in the
    cache: it takes so long until a change shows.

    Args:
        weight: how strongly recomputation reacts to the number of workflows, positive.
        speed: of the movement, positive.
        decode: share of decode time that counts as idle, 0 to 1.
        start: recomputing share of the time from which there is a limit.
    """

    name: ClassVar[str] = "balance"

    def __init__(self, weight: float = 4.0, speed: float = 1.0, decode: float = 1.0, start: float = 0.1) -> None:
        super().__init__()
        if not (weight > 0 and speed > 0 and 0 <= decode <= 1 and start >= 0):
            raise ValueError(
                f"weight {weight}, speed {speed} must be positive, decode {decode} from 0 to 1, start {start} at least 0"
            )
        self._weight, self._speed, self._decode, self._start = weight, speed, decode, start

    def explain(self) -> dict[str, float]:
        return super().explain() | {"idle": self._idle, "recomputing": self._recomputing, "gain": self._gain}

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
        if self._gain >= 0.0 or self._recomputing < self._start:
            return None
        return min(float(max(1, signals.admitted)), fitting(signals, capacity(signals)))

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        gain = self._gain
        if gain > 0 and signals.admitted < number - 1:
            return number  # nobody is kept out by it, so more would change nothing
        return number * math.exp(self._speed * gain * seconds / self.recent.residence_s(capacity(signals)))
