"""Congestion control: add while there is room, halve when the cache is full and hits fall."""

from __future__ import annotations

from typing import ClassVar

from cache_actor.admission.base import Signals, register
from cache_actor.admission.pressure import PressureLimit, capacity

# How often the number moves, in seconds.
PERIOD_S = 5.0


@register
class Aimd(PressureLimit):
    """Additive increase, multiplicative decrease, as in CONCUR (arXiv 2601.22705), which treats agents as TCP treats
    packets. Where the paper watches the hit rate, this watches what it loses: tokens computed a second time.

    Args:
        low, high: shares of the tiers that the contexts of those inside take: below `low` the number grows by `add`
            every 5 seconds, above `high` it is multiplied by `cut` if recomputation is more than `regret`. The
            published values of the first two are .2 and .5.
        regret: share of the prompt tokens computed that had been in the cache before.
    """

    name: ClassVar[str] = "aimd"

    def __init__(
        self, low: float = 0.2, high: float = 0.5, add: float = 1.0, cut: float = 0.5, regret: float = 0.2
    ) -> None:
        super().__init__()
        if not (0 <= low <= high and add > 0 and 0 < cut < 1 and 0 <= regret <= 1):
            raise ValueError(f"low {low}, high {high}, add {add}, cut {cut}, regret {regret} make no sense together")
        self._low, self._high, self._add, self._cut, self._regret = low, high, add, cut, regret
        self._since_s = 0.0

    def _first(self, signals: Signals) -> float | None:
        if not self._congested(signals):
            return None
        self._since_s = 0.0
        return max(1.0, signals.admitted * self._cut)

    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        self._since_s += seconds
        if self._since_s < PERIOD_S:
            return number
        self._since_s = 0.0
        if self._congested(signals):
            return number * self._cut
        return number + self._add if self._used(signals) < self._low or not self._full(signals) else number

    def _full(self, signals: Signals) -> bool:
        return self._used(signals) > self._high

    def _congested(self, signals: Signals) -> bool:
        return self._full(signals) and self.recent.regret_share > self._regret

    @staticmethod
    def _used(signals: Signals) -> float:
        return (signals.working_set + signals.growth) / max(1, capacity(signals))
