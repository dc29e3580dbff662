"""What an engine has done lately: its counts as rates, in which the past fades."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cache_actor.admission.base import Signals

SHORTEST_S, LONGEST_S = 5.0, 120.0


@dataclass(slots=True)
class Recent:
    """Sums over the recent past, an observation `memory_s` ago counting 1/e of the latest.

    Attributes:
        seconds: of it; `prefill_s` and `busy_s` of these the engine has spent on prefill, and on anything.
        computed, regret, reused, output: tokens, as in `Signals`.
        admitted_s, waiting_s, needed_s: workflows inside, calls waiting in the engine, and tokens of the contexts of
            those inside as they are forecast to grow, times seconds.
    """

    seconds: float = 0.0
    prefill_s: float = 0.0
    busy_s: float = 0.0
    computed: float = 0.0
    regret: float = 0.0
    reused: float = 0.0
    output: float = 0.0
    admitted_s: float = 0.0
    waiting_s: float = 0.0
    needed_s: float = 0.0

    @property
    def prefill_share(self) -> float:
        """Of the time, 0 to 1."""
        return _share(self.prefill_s, self.seconds)

    @property
    def busy_share(self) -> float:
        return _share(self.busy_s, self.seconds)

    @property
    def regret_share(self) -> float:
        """Of the prompt tokens computed: those that had been in the cache before."""
        return _share(self.regret, self.computed)

    @property
    def missed_share(self) -> float:
        """Of the prompt tokens that had been in the cache before: those that were no longer."""
        return _share(self.regret, self.regret + self.reused)

    @property
    def admitted(self) -> float:
        """Workflows inside, on the mean."""
        return self.admitted_s / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def waiting(self) -> float:
        """Calls that wait in the engine, on the mean."""
        return self.waiting_s / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def context(self) -> float:
        """Tokens of a context, as it is forecast to grow, on the mean."""
        return self.needed_s / self.admitted_s if self.admitted_s > 0.0 else 0.0

    def residence_s(self, capacity: int) -> float:
        """How long tokens stay in tiers that hold `capacity`, before as many others have come. Between `SHORTEST_S`
        and `LONGEST_S`, so that nothing reacts to a single call or takes an hour to learn of a change."""
        arriving = self.computed + self.output
        if arriving <= 0.0 or self.seconds <= 0.0:
            return LONGEST_S
        return min(LONGEST_S, max(SHORTEST_S, capacity * self.seconds / arriving))

    def add(self, before: Signals, now: Signals, memory_s: float) -> bool:
        """Takes in what was between two observations. False, and nothing is, if no time or a step back was."""
        seconds = now.at - before.at
        came = (
            now.prefill_s - before.prefill_s,
            now.busy_s - before.busy_s,
            now.computed - before.computed,
            now.regret - before.regret,
            now.reused - before.reused,
            now.output - before.output,
        )
        if not 0.0 < seconds < math.inf or min(came) < 0.0:
            return False
        kept = math.exp(-seconds / memory_s)
        self.seconds = self.seconds * kept + seconds
        self.prefill_s = self.prefill_s * kept + came[0]
        self.busy_s = self.busy_s * kept + came[1]
        self.computed = self.computed * kept + came[2]
        self.regret = self.regret * kept + came[3]
        self.reused = self.reused * kept + came[4]
        self.output = self.output * kept + came[5]
        self.admitted_s = self.admitted_s * kept + now.admitted * seconds
        self.waiting_s = self.waiting_s * kept + now.waiting_calls * seconds
        self.needed_s = self.needed_s * kept + (now.working_set + now.growth) * seconds
        return True


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else 0.0
