"""Hill climbing on useful work: try more, try fewer, keep to what brought more."""

from __future__ import annotations

from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity, fitting


@register
class Gradient(PressureLimit):
    """Changes the number by a step, waits until the change shows in the cache, and turns round if less was done.

    What was done is the tokens generated, and those prefilled for the first time, in a second. Concurrency limits of
    network services are often found in this way; here a step takes as long as tokens stay in the cache.

    Args:
        step: share by which the number changes, between 0 and 1.
        start: share of the prompt tokens computed a second time from which there is a limit.
    """

    name: ClassVar[str] = "gradient"

    def __init__(self, step: float = 0.1, start: float = 0.2) -> None:
        super().__init__()
        if not (0 < step < 1 and start >= 0):
            raise ValueError(f"step {step} is not between 0 and 1, or start {start} below 0")
        self._step, self._start = step, start
        self._direction = -1
        self._best: float | None = None
        self._since_s = 0.0

    def _first(self, signals: Signals) -> float | None:
        if self.recent.regret_share <= self._start:
            return None
        self._direction, self._best, self._since_s = -1, None, 0.0
        return min(float(max(1, signals.admitted)), fitting(signals, capacity(signals)))

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        self._since_s += seconds
        if self._since_s < self.recent.residence_s(capacity(signals)):
            return number
        self._since_s = 0.0
        useful = (self.recent.computed - self.recent.regret + self.recent.output) / self.recent.seconds
        if self._best is not None and useful < self._best:
            self._direction = -self._direction
        self._best = useful
        return number * (1.0 + self._step) ** self._direction
