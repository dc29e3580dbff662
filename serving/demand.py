"""What the workflows of one engine ask of it now and will in the next minute. Pure; time is a parameter, in seconds."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cache_actor.messages import EnginePlan
from cache_actor.policies.base import VALUE_ONE
from predictor_actor.base import HORIZON
from serving.scaling import MINUTE_S, EngineStats

# Weight of the newest of a workflow's gaps, and of an engine's call times, in their running means.
_NEWEST = 0.3
_GOES_ON = np.linspace(0.0, 1.0, 65)


@dataclass(slots=True)
class _Workflow:
    began: float
    running: int = 0
    gap_s: float = math.nan  # from call to call
    prompt_tokens: int = 0  # of the latest call
    goes_on: float = 1.0  # after each call, by the newest forecast


class EngineDemand:
    """Calls in flight and the pace of the workflows that make them.

    Args:
        discount: gamma of the value tables.
        max_workflows: that are remembered; the one without a call for longest is forgotten.
    """

    def __init__(self, discount: float, max_workflows: int) -> None:
        self._calls: OrderedDict[str, tuple[str, float, int]] = OrderedDict()
        self._workflows: OrderedDict[str, _Workflow] = OrderedDict()
        self._max_workflows = max_workflows
        self._call_s = math.nan
        self._lapse = -math.inf
        self._worth = sum(discount**k * _GOES_ON ** (k + 1) for k in range(HORIZON)) * VALUE_ONE

    def began(self, rid: str, workflow: str, prompt_tokens: int, now: float) -> None:
        """A call goes to the engine."""
        known = self._workflows.get(workflow)
        if known is None:
            known = self._workflows[workflow] = _Workflow(now)
            if len(self._workflows) > self._max_workflows:
                self._workflows.popitem(last=False)
        else:
            known.gap_s = _mean(known.gap_s, now - known.began)
            known.began = now
            self._workflows.move_to_end(workflow)
        known.running += 1
        # What the call before it had computed is expected to be in the cache.
        self._calls[rid] = workflow, now, max(0, prompt_tokens - known.prompt_tokens)
        known.prompt_tokens = prompt_tokens

    def over(self, rid: str, now: float) -> None:
        """A call is over, in whatever way; one that never began may be."""
        if (call := self._calls.pop(rid, None)) is None:
            return
        workflow, began, _ = call
        self._call_s = _mean(self._call_s, now - began)
        if (known := self._workflows.get(workflow)) is not None:
            known.running = max(0, known.running - 1)

    def end(self, workflow: str) -> None:
        """A workflow is over."""
        self._workflows.pop(workflow, None)

    def expect(self, plan: EnginePlan, now: float) -> None:
        """A plan has come. The workflows that it ends live elsewhere or nowhere. Of each table the chance that the
        workflow goes on after a call is taken, as if it were the same after each: the rho of sum over k of
        gamma^(k-1) rho^k, which is the table's sum."""
        for workflow in plan.ends:
            self.end(workflow)
        if plan.tables or plan.renew:
            self._lapse = now + plan.time_to_live_s
        for workflow, table in plan.tables.items():
            if (known := self._workflows.get(workflow)) is not None:
                value = math.inf if table is None else sum(table.values())
                known.goes_on = float(np.interp(value, self._worth, _GOES_ON))

    def pending_tokens(self, waiting: int) -> int:
        """Of the prompts that wait to be computed, what is not expected to be in the cache.

        Args:
            waiting: calls that the scheduler has not begun; the latest are taken for them.
        """
        return sum(tokens for _, _, tokens in itertools.islice(reversed(self._calls.values()), waiting))

    def stats(self, waiting: int, held: float, pools: Mapping[str, int] | None, now: float) -> EngineStats:
        """How things stand.

        Args:
            waiting: as `pending_tokens` has it.
            held: workflows that wait to be let in.
            pools: of the engine's cache, in tokens; None: not known.
        """
        recent = list(itertools.takewhile(lambda one: now - one.began < MINUTE_S, reversed(self._workflows.values())))
        running = {workflow for workflow, _, _ in self._calls.values()}
        active = len(recent) + sum(
            1 for name in running if (one := self._workflows.get(name)) is None or now - one.began >= MINUTE_S
        )
        return EngineStats(
            len(self._calls),
            active + held,
            sum(_next_minute(one, one.goes_on if now < self._lapse else 1.0, now) for one in recent),
            0.0 if math.isnan(self._call_s) else self._call_s,
            self.pending_tokens(waiting),
            _active_share(pools),
        )


def _next_minute(workflow: _Workflow, rho: float, now: float) -> float:
    """Calls that a workflow will begin within a minute: at the pace of its calls so far, slower if it has paused for
    longer than that, and each with the chance that it gets so far. Of one that has called once: one more."""
    gap = max(workflow.gap_s, now - workflow.began) if not math.isnan(workflow.gap_s) else MINUTE_S
    most = MINUTE_S / max(gap, 1e-3)
    return most if rho >= 1.0 else min(most, rho * (1.0 - rho**most) / (1.0 - rho))


def _active_share(pools: Mapping[str, int] | None) -> float | None:
    if pools is None or "device_active" not in pools:
        return None
    size = pools["free"] + pools["evictable"] + pools["locked"]
    return min(1.0, pools["device_active"] / size) if size > 0 else None


def _mean(mean: float, newest: float) -> float:
    return newest if math.isnan(mean) else mean + _NEWEST * (newest - mean)
