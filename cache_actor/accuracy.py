"""How often the likeliest agent did come: of the forecasts that were acted on, by how far ahead they looked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cache_actor.forecast import END
from predictor_actor.base import HORIZON

WINDOW = 500


class Accuracy:
    """Over the latest WINDOW calls for which there was a forecast, for each k."""

    def __init__(self) -> None:
        self._right: list[deque[bool]] = [deque(maxlen=WINDOW) for _ in range(HORIZON)]

    def came(self, agent: str, expected: Iterable[tuple[str, ...]]) -> None:
        """A call was made, or the workflow has ended (END).

        Args:
            expected: `Forecast.likeliest` of the workflow's calls before, the latest first, as far as they are known.
        """
        for k, likeliest in enumerate(expected):
            if k < HORIZON and likeliest:
                self._right[k].append(likeliest[k] == agent)

    def ended(self, expected: list[tuple[str, ...]]) -> None:
        """A workflow has ended: what was expected of the calls that it did not make any more."""
        for late in range(HORIZON):
            self.came(END, [*[()] * late, *expected])

    def figures(self) -> list[float | None]:
        """The share that was right for k = 1..K; None where there is nothing yet."""
        return [sum(right) / len(right) if right else None for right in self._right]
