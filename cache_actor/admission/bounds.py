"""What the gate promises to those who wait, and what it tells them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# What refused clients are told at most: OpenAI's client passes over a `Retry-After` of more than 60 s.
MAX_RETRY_S = 60.0
# Share of the longest wait that may be expected: estimates are not exact, and who gets in beyond a limit costs all.
_EXPECTABLE = 0.75


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the gate promises to those who wait.

    Attributes:
        max_wait_s: who has waited so long gets in, whatever the limit; who is expected to wait for more than three
            quarters of it is refused.
        max_waiting: calls of workflows that have never been in; beyond it they are refused.
        idle_s: a workflow that has been without a call for so long gives its place to one that waits.
        pause_after_s: so long more may be in than the limit says before some are paused, so that a limit that goes
            down and up again pauses nobody.
        weights: of tenants, for their shares of the places; others weigh 1.
        alone: whether this is the only gate. If it is not, a parent that is not known here is in at another, or it
            would have started nothing.
    """

    max_wait_s: float = math.inf
    max_waiting: int = sys.maxsize
    idle_s: float = math.inf
    pause_after_s: float = 3.0
    weights: Mapping[str, float] = field(default_factory=dict)
    alone: bool = True

    @property
    def expectable_s(self) -> float:
        """Who is expected to wait longer is refused."""
        return _EXPECTABLE * self.max_wait_s


class Refused(Exception):
    """A call may not even wait: as many wait as may (`full`), or it would wait too long (`wait`).

    retry_after_s: when it is worth trying again, in seconds; None: nobody knows.
    """

    def __init__(self, reason: Literal["full", "wait"], retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = None if retry_after_s is None else min(retry_after_s, MAX_RETRY_S)


@dataclass(frozen=True, slots=True)
class Queued:
    """A workflow that waits: about its place, 1 for the next, and how long it will wait yet; None: nobody knows."""

    place: int
    waiting: int
    waited_s: float
    estimate_s: float | None
