"""What all limits that are found have in common: none without pressure, a first guess, and a number that moves."""

from __future__ import annotations

from abc import abstractmethod

from cache_actor.admission.base import LimitController, Signals
from cache_actor.admission.recent import Recent

# A whole limit follows the number that is found when it is this far away, so that it does not flutter.
SLACK = 0.75
# A found number that has not been needed for so long is forgotten, in seconds.
CALM_S = 10.0


class PressureLimit(LimitController):
    """No limit until tokens are computed a second time; then a number that `_next` moves, from `_first` on.

    Attributes:
        recent: what the engine has done lately.
        number: the number of workflows found, as a fraction; None without a limit.
    """

    def __init__(self) -> None:
        self.recent = Recent()
        self.number: float | None = None
        self._before: Signals | None = None
        self._limit: int | None = None
        self._calm_s = 0.0

    def observe(self, signals: Signals) -> int | None:
        before, self._before = self._before, signals
        if before is None or signals.at == before.at:
            return self._limit
        memory_s = self.recent.residence_s(capacity(signals))
        if not self.recent.add(before, signals, memory_s):
            self.recent, self.number, self._limit, self._calm_s = Recent(), None, None, 0.0
            return None
        seconds = signals.at - before.at
        calm = not signals.held and (signals.regret == before.regret or self._is_unneeded(signals))
        self._calm_s = self._calm_s + seconds if calm else 0.0
        if self._calm_s >= CALM_S:
            self.number = self._limit = None
        elif self.number is None:
            self.number = self._first(signals)
        else:
            self.number = max(1.0, self._next(self.number, signals, seconds))
        self._limit = self._whole()
        return self._limit

    def explain(self) -> dict[str, float]:
        figures = {"regret_share": self.recent.regret_share, "prefill_share": self.recent.prefill_share}
        return figures if self.number is None else figures | {"number": self.number}

    def _is_unneeded(self, signals: Signals) -> bool:
        """Whether the number, which keeps nobody out, is not needed although something was computed again."""
        return False

    @abstractmethod
    def _first(self, signals: Signals) -> float | None:
        """The number to begin with, at least 1; None: there is no need yet."""

    @abstractmethod
    def _next(self, number: float, signals: Signals, seconds: float) -> float:
        """The number after another period of so many seconds."""

    def _whole(self) -> int | None:
        if self.number is None:
            return None
        if self._limit is None or abs(self.number - self._limit) > SLACK:
            return max(1, round(self.number))
        return self._limit


def capacity(signals: Signals) -> int:
    """Tokens that the tiers hold. What is on the host is there again after a load, and not computed again."""
    return max(signals.device_tokens, signals.host_tokens)


def fitting(signals: Signals, tokens: float) -> float:
    """How many workflows fit into `tokens`, by the mean of those that are in; at least 1."""
    needed = signals.working_set + signals.growth
    if needed <= 0 or not signals.admitted:
        return max(1.0, float(signals.admitted))
    return max(1.0, signals.admitted * tokens / needed)
