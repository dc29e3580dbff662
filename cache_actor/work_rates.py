"""What work costs an engine, from what it says that it has done. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cache_actor.messages import Work

# Work that is so old counts half, in seconds.
HALF_LIFE_S = 60.0
# Of less nothing can be said.
MIN_TOKENS, MIN_CALLS = 1024.0, 4.0


@dataclass(slots=True)
class WorkRates:
    """Sums of work, exponentially forgotten."""

    _prefill_s: float = 0.0
    _computed: float = 0.0
    _decode_s: float = 0.0
    _calls: float = 0.0

    def worked(self, before: Work, now: Work, calls: int) -> None:
        """The engine has worked from `before` to `now`, and `calls` were over meanwhile."""
        fades = 0.5 ** (max(0.0, now.at - before.at) / HALF_LIFE_S)
        prefill_s = max(0.0, now.prefill_s - before.prefill_s)
        busy_s = max(0.0, now.busy_s - before.busy_s)
        self._prefill_s = fades * self._prefill_s + prefill_s
        self._computed = fades * self._computed + max(0, now.computed - before.computed)
        self._decode_s = fades * self._decode_s + max(0.0, busy_s - prefill_s)
        self._calls = fades * self._calls + calls

    @property
    def prefill_token_s(self) -> float:
        """Seconds that a prompt token takes; 0 if there were too few."""
        return self._prefill_s / self._computed if self._computed >= MIN_TOKENS else 0.0

    @property
    def running_call_s(self) -> float:
        """Seconds of the engine's decode that go to one call; 0 if there were too few."""
        return self._decode_s / self._calls if self._calls >= MIN_CALLS else 0.0
