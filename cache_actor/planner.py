"""From what the runtime's policies drafted to one engine's next plan: limits, numbers, lifetimes, and the log. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cache_actor.cluster import Cluster
from cache_actor.decisions import SHADOW
from cache_actor.messages import Anchor, EnginePlan, PrefetchOrder
from cache_actor.runtime import Draft, Runtime
from cache_actor.state import EngineState

Mode = Literal["on", "shadow", "off"]
MODES: tuple[Mode, ...] = ("on", "shadow", "off")
# A plan stays small; what is left over goes with the next.
MAX_NEWS = 256
MAX_ENDS = 2000
# An order that could not be served by then comes too late for the call it was for, in seconds.
ORDER_LIFE_S = 15.0


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """How plans are made.

    Attributes:
        plan_ttl_s: how long an engine goes on with a table that nobody renews.
        first_order: number of the first prefetch order, beyond those of a coordinator before this one.
    """

    plan_ttl_s: float = 10.0
    first_order: int = 1


class Planner:
    """Makes the plans of all engines.

    Attributes:
        mode: `on`; `shadow`: all is planned, accounted and logged, and nothing is sent but what living without a
            coordinator needs as well (ends); `off`: nothing is planned, and engines forget what they were told.
        counts: of plans and of what was in them.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, config: PlannerConfig, mode: Mode = "on") -> None:
        self.mode = mode
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._runtime = runtime
        self._config = config
        self._orders = itertools.count(config.first_order)

    def plan(self, engine: EngineState, now: float) -> EnginePlan | None:
        """What an engine should do now; None if there is nothing. `now` in seconds since 1970."""
        ends = list(itertools.islice(engine.ends, MAX_ENDS))
        for workflow in ends:
            del engine.ends[workflow]
        draft = Draft() if self.mode == "off" else self._draft(engine, now)
        self._limit(engine, draft)
        if self.mode != "on":
            self.counts["shadow_tables"] += len(draft.tables)
            self.counts["shadow_prefetches"] += len(draft.prefetches)
            draft = Draft(tables=self._take_back(engine))
        for order in [number for number, (*_, at) in engine.orders.items() if now - at > 2 * ORDER_LIFE_S]:
            del engine.orders[order]  # its receipt was lost
        renew = self.mode == "on" and now - engine.renewed_at >= self._config.plan_ttl_s / 2
        if not (ends or draft.tables or draft.prefetches or draft.priorities or draft.warm_ups or renew):
            return None
        if renew:
            engine.renewed_at = now
        if self.mode == "on" and draft.tables:
            engine.holds_tables = True
        engine.plan += 1
        engine.planned_at = now
        self.counts["plans"] += 1
        self.counts["tables"] += len(draft.tables)
        self.counts["prefetches"] += len(draft.prefetches)
        return EnginePlan(
            engine.plan,
            self._config.plan_ttl_s,
            ends,
            draft.tables,
            self._ordered(engine, draft, now),
            renew=renew,
            priorities=draft.priorities or None,
            warm_ups=self._warm_ups(engine, draft, now) or None,
        )

    def _draft(self, engine: EngineState, now: float) -> Draft:
        names = list(itertools.islice(engine.news, MAX_NEWS))
        news = []
        for name in names:
            del engine.news[name]
            if (state := self._cluster.workflows.get(name)) is not None:
                news.append(state)
        draft = self._runtime.act(news, engine, self._cluster)
        shadow = SHADOW if self.mode == "shadow" else ""
        for workflow, what, *values in draft.reasons:
            if (state := self._cluster.workflows.get(workflow)) is not None:
                state.decisions.append((now, shadow + what, engine.id, *values))
        return draft

    def _take_back(self, engine: EngineState) -> dict[str, dict[str, int] | None]:
        """Once, after it was switched from `on`: no table any more for whoever lives there."""
        if not engine.holds_tables:
            return {}
        engine.holds_tables = False
        return dict.fromkeys(engine.workflows)

    def switch(self, mode: str) -> None:
        """Another mode from now on.

        Raises:
            ValueError: there is no such mode.
        """
        known = next((one for one in MODES if one == mode), None)
        if known is None:
            raise ValueError(f"mode cannot be {mode!r}; choose from {', '.join(MODES)}")
        if known != self.mode:
            self.mode = known
            if known == "off":
                self._runtime.switched_off()
            for engine in self._cluster.engines.values():
                self._cluster.forget_told(engine)
                engine.limit = None

    def _limit(self, engine: EngineState, draft: Draft) -> None:
        """What ingresses are told of an engine from now on: nothing but in mode `on`."""
        if draft.limit != engine.found:
            self.counts["shadow_limits" if self.mode == "shadow" else "limits"] += 1
        engine.found, engine.figures = draft.limit, draft.figures
        engine.limit = draft.limit if self.mode == "on" else None

    def _warm_ups(self, engine: EngineState, draft: Draft, now: float) -> list[Anchor]:
        anchors = self._cluster.anchors
        known = [agent for agent in draft.warm_ups if agent in anchors]
        engine.warming |= dict.fromkeys(known, now)
        self.counts["warm_ups"] += len(known)
        return [Anchor(agent, anchors[agent]) for agent in known]

    def _ordered(self, engine: EngineState, draft: Draft, now: float) -> list[PrefetchOrder]:
        orders = []
        for value, workflow, agent, tokens in draft.prefetches:
            number = next(self._orders)
            engine.orders[number] = (workflow, agent, tokens, now)
            orders.append(PrefetchOrder(number, workflow, agent, value, tokens))
        return orders
