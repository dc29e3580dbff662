"""The limit of what fits: as many workflows as their contexts have room for."""

from __future__ import annotations

import math
from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity, fitting

# Mean contexts are smoothed over so long, in seconds: workflows come with short ones and leave with long ones.
SMOOTHED_S = 30.0


@register
class WorkingSet(PressureLimit):
    """Lets in as many as the tiers hold, by the mean context of those inside (Denning, "The working set model for
    program behavior", 1968: run only programs whose working sets fit together).

    Args:
        share: of the tiers that may be filled, positive; more than 1 counts on contexts that overlap or are dead.
    """

    name: ClassVar[str] = "working-set"

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        if not share > 0:
            raise ValueError(f"share cannot be {share}; it is positive")
        self._share = share

    def _first(self, signals: Signals) -> float | None:
        return self._fit(signals) if self.recent.regret > 0.0 else None

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        return number + (self._fit(signals) - number) * (1.0 - math.exp(-seconds / SMOOTHED_S))

    def _fit(self, signals: Signals) -> float:
        return fitting(signals, self._share * capacity(signals))
