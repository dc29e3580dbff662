"""Reports of made-up engines, for tests of the coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cache_actor.messages import Anchor, CallEvent, EngineReport, Eviction, Receipt, SyncReport, Work, WorkflowSeen
from predictor_actor.base import HORIZON, Forecasts, Prefix


@dataclass(slots=True)
class MadeUpEngine:
    """Numbers its reports. It is under pressure, unless it is `calm`, and says what it has worked."""

    id: str = "e"
    epoch: int = 1
    calm: bool = False
    work: Work = field(default_factory=lambda: Work(regret=0, device_tokens=1000, host_tokens=4000))
    pending_tokens: int = 0
    draining: bool = False
    evicted: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def report(
        self,
        *events: CallEvent,
        ended: Mapping[str, str] | None = None,
        seen: Sequence[WorkflowSeen] = (),
        cache: Sequence[EngineReport] = (),
        applied: int = 0,
        anchors: Sequence[Anchor] = (),
        warmed: Mapping[str, bool] | None = None,
    ) -> SyncReport:
        return SyncReport(
            engine=self.id,
            epoch=self.epoch,
            number=next(self.numbers),
            applied_plan=applied,
            events=list(events),
            ended=dict(ended or {}),
            seen=list(seen),
            cache=list(cache),
            anchors=list(anchors),
            warmed=dict(warmed or {}),
            running=0,
            waiting=0,
            pressure=0 if self.calm else next(self.evicted),
            work=self.work,
            pending_tokens=self.pending_tokens,
            draining=self.draining,
        )


def began(workflow: str, agent: str = "coder", at: float = 1.0, tokens: int = 100) -> CallEvent:
    return CallEvent(workflow, agent, False, at, tokens)


def over(workflow: str, agent: str = "coder", at: float = 2.0, tokens: int = 100) -> CallEvent:
    return CallEvent(workflow, agent, True, at, tokens, 10, 50, 20)


def cache_report(
    plan: int = 1,
    accepted: bool = True,
    receipts: Sequence[Receipt] = (),
    residency: Mapping[str, list[int]] | None = None,
    evictions: Sequence[Eviction] = (),
    applied: int = 0,
    pools: Mapping[str, int] | None = None,
) -> EngineReport:
    return EngineReport(
        plan,
        accepted,
        "",
        list(receipts),
        {},
        dict(pools or {}),
        dict(residency or {}),
        list(evictions),
        applied,
    )


def certain(prefixes: Sequence[Prefix], agents: Sequence[str], coming: str) -> Forecasts:
    """Forecasts that `coming` makes all calls to come."""
    steps = np.zeros((len(prefixes), HORIZON, len(agents) + 1), np.float32)
    steps[:, :, list(agents).index(coming)] = 1
    return Forecasts(tuple(agents), steps, "certain 1")
