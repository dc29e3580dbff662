"""How one figure reacts to another, learned from a run of both in which the past fades."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Slope:
    """The least-squares slope of y over x, drawn towards what was expected while x has hardly moved (ridge regression).

    Attributes:
        variance: of x; `covariance` of x and y.
    """

    seconds: float = 0.0
    mean_x: float = 0.0
    mean_y: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def take(self, x: float, y: float, seconds: float, memory_s: float) -> None:
        """Both were so for so many seconds; what was `memory_s` ago counts 1/e of this."""
        self.seconds = self.seconds * math.exp(-seconds / memory_s) + seconds
        part = seconds / self.seconds
        from_x, from_y = x - self.mean_x, y - self.mean_y
        self.mean_x += part * from_x
        self.mean_y += part * from_y
        self.variance = (1.0 - part) * (self.variance + part * from_x * from_x)
        self.covariance = (1.0 - part) * (self.covariance + part * from_x * from_y)

    def value(self, expected: float, trust: float) -> float:
        """The slope; `trust` is the variance of x at which it is half the expected one, positive."""
        return (self.covariance + trust * expected) / (self.variance + trust)
