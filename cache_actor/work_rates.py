"""What work costs an engine, from what it says that it has done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache_actor.messages import Work

# Work that is so old counts half, in seconds.
HALF_LIFE_S = 60.0
# Of less, on all engines together, nothing can be said.
MIN_TOKENS, MIN_CALLS = 1024.0, 4.0
# What all engines together have measured weighs as much as so much work of an engine's own.
PRIOR_TOKENS, PRIOR_CALLS = 8192.0, 16.0


@dataclass(frozen=True, slots=True)
class WorkCosts:
    """What work costs, in seconds; 0 where it is not known.

    Attributes:
        prefill_token_s: of computing a prompt token.
        running_call_s: of an engine's decode, those that go to one call.
    """

    prefill_token_s: float = 0.0
    running_call_s: float = 0.0


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


def costs_of(engines: Mapping[str, WorkRates]) -> dict[str, WorkCosts]:
    """What work costs each engine, drawn towards what it costs all of them together as it has worked less.

    An engine's own figures alone would do harm: one that has measured little, or was slow for a moment, would look
    worse than the others, get no work, and never learn better.
    """
    computed = sum(one._computed for one in engines.values())
    calls = sum(one._calls for one in engines.values())
    token_s = sum(one._prefill_s for one in engines.values()) / computed if computed >= MIN_TOKENS else 0.0
    call_s = sum(one._decode_s for one in engines.values()) / calls if calls >= MIN_CALLS else 0.0
    return {
        name: WorkCosts(
            _drawn(one._prefill_s, one._computed, token_s, PRIOR_TOKENS),
            _drawn(one._decode_s, one._calls, call_s, PRIOR_CALLS),
        )
        for name, one in engines.items()
    }


def _drawn(seconds: float, work: float, common: float, prior: float) -> float:
    return (seconds + prior * common) / (work + prior) if common > 0 else 0.0
