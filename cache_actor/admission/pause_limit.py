"""Pause when those inside no longer fit on the device, resume when they do."""

from __future__ import annotations

import math
from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit

# ThunderAgent looks every 5 seconds, and keeps 100 tokens free for each workflow that is in.
PERIOD_S = 5.0
BUFFER_TOKENS = 100


@register
class Pause(PressureLimit):
    """ThunderAgent's rule (arXiv 2602.13692, and its public documentation): when the contexts of those inside exceed
    the device, as many are paused as it takes, the smallest first; as soon as there is room, some come back.

    Which ones, the gate decides; how many, this does, by the mean context. What the host holds does not count.

    Args:
        fill: share of the device that counts as full, positive.
    """

    name: ClassVar[str] = "pause"

    def __init__(self, fill: float = 1.0) -> None:
        super().__init__()
        if not fill > 0:
            raise ValueError(f"fill cannot be {fill}; it is positive")
        self._fill = fill
        self._since_s = 0.0

    def _first(self, signals: Signals) -> float | None:
        if self.recent.regret <= 0.0 or self._room(signals) >= 0:
            return None
        self._since_s = 0.0
        return self._moved(signals)

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        self._since_s += seconds
        if self._since_s < PERIOD_S:
            return number
        self._since_s = 0.0
        return self._moved(signals)

    def _room(self, signals: Signals) -> float:
        used = signals.working_set + signals.growth + BUFFER_TOKENS * signals.admitted
        return self._fill * signals.device_tokens - used

    def _moved(self, signals: Signals) -> float:
        mean = (signals.working_set + signals.growth) / max(1, signals.admitted) + BUFFER_TOKENS
        return max(1.0, signals.admitted + math.floor(self._room(signals) / mean))
