"""How many engines there should be: the decision behind `serving.autoscaling`. Pure; time is a parameter.

Queue length alone says it too late: a workflow that waits for a tool holds its place in the pool and comes back, and a
long prompt that waits is one call. So four things are asked, each of which says how many engines it needs, and the
largest answer counts. Up goes at once; down goes slowly, and never below what was needed a while ago.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from serving.config import ScalingConfig

# Less than this, in engines, is a rounding error.
_NOTHING = 1e-9
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What one engine says of itself.

    Attributes:
        calls: in its hands, running or waiting.
        workflows: that have a call running, have begun one within the last minute, or wait to be let in.
        next_minute: calls that are forecast to come in the next minute.
        call_s: what a call lately took, in seconds.
        pending_tokens: of the prompts that wait to be computed.
        active_share: share of the device pool that living workflows' entries fill; None: not known.
    """

    calls: float = 0.0
    workflows: float = 0.0
    next_minute: float = 0.0
    call_s: float = 0.0
    pending_tokens: float = 0.0
    active_share: float | None = None

    def told(self) -> dict[str, float]:
        """As numbers by name, which is what Ray Serve carries; what is not known is left out."""
        figures = {name: getattr(self, name) for name in self.__slots__}
        return {name: float(value) for name, value in figures.items() if value is not None}

    @classmethod
    def heard(cls, figures: Mapping[str, float]) -> Self:
        """The inverse of `told`; names it does not know are others'."""
        return cls(**{name: value for name, value in figures.items() if name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a decision is made from.

    Attributes:
        engines: those that have said something lately.
        silent: engines that run and have not.
        queued: calls that no engine has taken yet.
        target: engines that are wanted so far.
        least, most: bounds of the answer.
    """

    engines: Sequence[EngineStats]
    silent: int
    queued: float
    target: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered from decision to decision.

    Attributes:
        since: of the first one, in seconds.
        busy: when a call was last in hand.
        peaks: (time, engines): the needs of the past that no later one has reached, the oldest and largest first.
    """

    since: float
    busy: float
    peaks: tuple[tuple[float, int], ...] = ()


class Decision(NamedTuple):
    """How many engines, what each signal asked for (in engines, with fractions), and the one that asked for most."""

    target: int
    asked: Mapping[str, float]
    reason: str


def needs(seen: Observation, config: ScalingConfig) -> dict[str, float]:
    """For each signal the engines that it needs, with fractions.

    * `workflows`: active ones, over `workflows` an engine;
    * `calls`: in flight or queued, over `calls` an engine;
    * `forecast`: those that will be in flight when the calls of the next minute have come, by Little's law (calls a
      second times seconds a call), over `calls` an engine;
    * `prefill`: tokens of prompts that wait, over `pending_tokens` an engine;
    * `pool`: pools that living workflows fill, over `active_share` of one.
    """
    engines = seen.engines
    coming = sum(one.next_minute * one.call_s for one in engines) / MINUTE_S
    return {
        "workflows": sum(one.workflows for one in engines) / config.workflows,
        "calls": (sum(one.calls for one in engines) + seen.queued) / config.calls,
        "forecast": coming / config.calls,
        "prefill": sum(one.pending_tokens for one in engines) / config.pending_tokens,
        "pool": sum(one.active_share or 0.0 for one in engines) / config.active_share,
    }


def decide(seen: Observation, past: Past | None, config: ScalingConfig, now: float) -> tuple[Decision, Past]:
    """How many engines there should be now, and what to remember.

    * Up: to what the signals ask for, at once.
    * Down: to the largest need of the last `down_after_s`, where a need leaves an engine's `spare` free. What is
      added for load that is at the limit is so not taken away again for the same load.
    * To none: from one, when no call was in hand for `zero_after_s`, however many workflows pause.
    * An engine that has said nothing yet may do anything: while there is one, none is taken away.

    Args:
        past: what the decision before has returned; None: there was none.
        now: seconds, of the same clock as the decision before.
    """
    asked = needs(seen, config)
    signal = max(asked, key=lambda name: asked[name])
    load = asked[signal]
    wanted = _engines(load)
    need = max(_engines(load / (1.0 - config.spare)), seen.target if seen.silent else 0)
    past = past or Past(now, now)
    busy = now if seen.silent or asked["calls"] > _NOTHING else past.busy
    peaks = (*(peak for peak in past.peaks if peak[1] > need and now - peak[0] < config.down_after_s), (now, need))
    if wanted > seen.target:
        target, reason = wanted, _because(signal, asked)
    elif now - past.since < config.down_after_s:
        target, reason = seen.target, "not watched for long enough"
    else:
        target, reason = min(seen.target, max(1, peaks[0][1])), _because(signal, asked)
    if seen.target <= 1 and now - busy >= config.zero_after_s:
        target, reason = 0, f"no call for {now - busy:.0f} s"
    target = max(seen.least, min(seen.most, target))
    return Decision(target, asked, reason), Past(past.since, busy, peaks)


def _engines(load: float) -> int:
    return math.ceil(load - _NOTHING)


def _because(signal: str, asked: Mapping[str, float]) -> str:
    return f"{signal} asks for {asked[signal]:.2f} engines"
