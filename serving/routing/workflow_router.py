"""Version two: by what is where, what comes there, and what it would cost."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cache_actor.snapshots import EngineSnapshot, Resident
from serving.routing.base import Decision, RoutedCall, Router, Why, register
from serving.routing.hot_anchors import HotAnchors
from serving.routing.known_engine import KnownEngine, Sent
from serving.routing.placement import Placement
from serving.routing.rates import Rates
from serving.routing.rehoming import Rehoming, mean_context
from serving.routing.scoring import cost_s, to_compute

# How often the mean context is found anew, in seconds.
AVERAGE_S = 0.2


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How it decides.

    Attributes:
        overload_bound: of the hash that stands in for stale snapshots; see `Placement`.
        workflow_bound, few_workflows: no engine gets a new workflow beyond this times the mean number of them, rounded
            up, but so few it may always have.
        stale_s: a snapshot that is older says nothing any more.
        margin_s, margin_share: a workflow leaves its engine only for one that saves so many seconds and such a share.
        team: agents of a workflow: where the anchor of one is, the others' are; 1 if that is not so.
        hot_half_life_s, workflows_per_copy: see `HotAnchors`.
        rehome: whether idle workflows leave engines that are overloaded or draining; see `Rehoming`.
        max_workflows: placements that are remembered.
    """

    overload_bound: float = 1.25
    workflow_bound: float = 2.0
    few_workflows: int = 4
    stale_s: float = 3.0
    margin_s: float = 2.0
    margin_share: float = 0.3
    team: float = 3.0
    hot_half_life_s: float = 30.0
    workflows_per_copy: float = 4.0
    rehome: bool = True
    max_workflows: int = 100_000

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), int(one.name in ("overload_bound", "workflow_bound", "team"))
            if not value >= least:
                raise ValueError(f"{one.name} is {value:g}; give at least {least}")
        if not min(self.hot_half_life_s, self.workflows_per_copy) > 0:
            raise ValueError("hot_half_life_s and workflows_per_copy must be above 0")


@dataclass(frozen=True, slots=True)
class _Choice:
    engine: KnownEngine
    why: Why


@register("workflow")
class WorkflowRouter(Router):
    """Each call goes where it costs least, and a workflow stays where it is unless another engine is much better.

    Args:
        settings: fields of `RouterSettings` and of `Rates`, by name.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(self, **settings: Any) -> None:
        self._rates = Rates(**{name: settings.pop(name) for name in Rates.__slots__ if name in settings})
        self._settings = RouterSettings(**settings)
        self._placement = Placement(self._settings.overload_bound, self._settings.max_workflows)
        self._known: dict[str, KnownEngine] = {}
        self._hot = HotAnchors(self._settings.hot_half_life_s, self._settings.workflows_per_copy)
        self._rehoming = Rehoming(max_workflows=self._settings.max_workflows)
        self._mean_context = 0.0
        self._averaged_at = -math.inf

    def set_engines(self, engines: Iterable[str]) -> None:
        wanted = sorted(set(engines))
        self._placement.set_engines(wanted)
        for gone in self._known.keys() - set(wanted):
            self._rehoming.lost(gone)
        for new in set(wanted) - self._known.keys():
            self._rehoming.came(new)
        self._known = {name: self._known.get(name) or KnownEngine(name, self._rates) for name in wanted}

    def drop_engine(self, engine: str) -> None:
        self.set_engines(self._known.keys() - {engine})

    def see(self, snapshot: EngineSnapshot) -> None:
        known = self._known.get(snapshot.engine)
        if known is None:
            return
        known.see(snapshot)
        if snapshot.at - self._averaged_at >= AVERAGE_S:
            self._averaged_at = snapshot.at
            self._mean_context = mean_context([one.snapshot for one in self._known.values() if one.snapshot])

    def adopt(self, workflow: str, engine: str) -> None:
        self._placement.adopt(workflow, engine)

    def answered(self, workflow: str, engine: str) -> str | None:
        if (known := self._known.get(engine)) is not None:
            known.answered(workflow)
        return self._rehoming.answered(workflow, engine)

    def rehome(self, now: float) -> list[str]:
        if not self._settings.rehome:
            return []
        fresh = [one for one in self._known.values() if one.is_fresh(now, self._settings.stale_s)]
        moves = self._rehoming.moves([one.snapshot for one in fresh if one.snapshot is not None], now)
        for move in moves:
            self._placement.adopt(move.workflow, move.target)
        return [move.workflow for move in moves]

    def release(self, workflow: str) -> None:
        self._placement.release(workflow)
        self._rehoming.over(workflow)

    def route(self, call: RoutedCall, running: Mapping[str, int], now: float) -> Decision | None:
        home = self._placement.engine_of(call.workflow)
        if home is None and call.wanted in self._known:
            choice: _Choice | None = _Choice(self._known[call.wanted], "admitted")
        else:
            choice = self._choose(call, home, running, now)
        wanted = None if choice is None else choice.engine.name
        if home is not None and wanted is not None and wanted != home:
            self._placement.release(call.workflow)
            self._rehoming.left(call.workflow, home, wanted)
        engine = self._placement.place(call.workflow, call.anchor, call.tagged, running, wanted)
        if engine is None:
            return None
        self._rehoming.called(call.workflow, engine)
        self._note(call, self._known[engine], engine != home, now)
        if home is None:
            self._hot.came(call.agent, now)
        if choice is None:
            return Decision(engine, "sticky" if engine == home else "hash")
        return Decision(engine, choice.why)

    def _choose(self, call: RoutedCall, home: str | None, running: Mapping[str, int], now: float) -> _Choice | None:
        """Where it costs least; None if too little is known to say."""
        settings = self._settings
        context = max(call.prompt_tokens, int(self._mean_context))
        at_home = math.inf
        if home is not None:
            engine = self._known[home]
            if self._rehoming.target(call.workflow) == home and not engine.draining:
                return _Choice(engine, "overload")
            if not engine.is_fresh(now, settings.stale_s):
                return None
            if not engine.draining:
                anchor = engine.anchor_tokens(call.agent)
                there, in_flight = engine.resident(call.workflow), running.get(home, 0)
                at_home = cost_s(engine, call.prompt_tokens, there, anchor, context, 0, in_flight)
                if at_home <= settings.margin_s:  # nobody can be better by as much
                    return _Choice(engine, "sticky")
        others = self._with_room(home, now)
        if not others:
            return None
        parent = call.parent if home is None else None
        held = [one.anchor_tokens(call.agent) for one in others]
        anchor = self._anchor(call, others, held, home, now)
        costs = [
            self._elsewhere(call, one, parent, anchor, tokens, context, running.get(one.name, 0))
            for one, tokens in zip(others, held, strict=True)
        ]
        least = min(costs)
        if home is not None and at_home - least <= max(settings.margin_s, settings.margin_share * at_home) < math.inf:
            return _Choice(self._known[home], "sticky")
        best = self._of_equals(call, [one for one, cost in zip(others, costs, strict=True) if cost == least])
        return _Choice(best, "overload" if home is not None else self._why(call, best, parent, anchor))

    def _with_room(self, home: str | None, now: float) -> list[KnownEngine]:
        """Engines that may get a workflow that does not live there."""
        settings, live = self._settings, self._placement.load()
        bound = math.ceil(settings.workflow_bound * (sum(live.values()) + 1) / max(1, len(live)))
        most = max(settings.few_workflows, bound)
        if not any(one.is_fresh(now, settings.stale_s) for one in self._known.values()):
            return []
        return [
            one
            for name, one in self._known.items()
            if live[name] < most
            and not one.draining
            and name != home
            and (one.is_new(now) or one.is_fresh(now, settings.stale_s))
        ]

    def _anchor(
        self, call: RoutedCall, others: Sequence[KnownEngine], held: Sequence[int], home: str | None, now: float
    ) -> int:
        """Tokens of its agent's anchor, of which engines hold so many; 0 if it is not to count: nobody has it, or one
        more engine should, and has room for it."""
        anchor = max(held)
        if home is None and len(held) - held.count(0) < self._hot.copies(call.agent, now):
            more = self._settings.team * anchor
            without = [one for one, tokens in zip(others, held, strict=True) if not tokens]
            if any(one.needed + more <= one.capacity for one in without):
                return 0
        return anchor

    def _elsewhere(
        self,
        call: RoutedCall,
        engine: KnownEngine,
        parent: str | None,
        anchor: int,
        held: int,
        context: int,
        in_flight: int,
    ) -> float:
        """Seconds on an engine that is not the workflow's."""
        there = engine.resident(call.workflow)
        if parent is not None:
            there = max(there, engine.resident(parent), key=_tokens)
        if held or not anchor:
            counts = held if anchor else 0
            return cost_s(engine, call.prompt_tokens, there, counts, context, context, in_flight)
        added = context + int(self._settings.team * anchor)
        cost = cost_s(engine, call.prompt_tokens, there, 0, added, added, in_flight)
        return cost + (self._settings.team - 1) * anchor * engine.rates.prefill_token_s

    def _of_equals(self, call: RoutedCall, engines: Sequence[KnownEngine]) -> KnownEngine:
        key = call.workflow if call.tagged else call.anchor or call.workflow
        return max(engines, key=lambda engine: zlib.crc32(f"{engine.name}\0{key}".encode(errors="surrogatepass")))

    def _why(self, call: RoutedCall, engine: KnownEngine, parent: str | None, anchor: int) -> Why:
        if _tokens(engine.resident(call.workflow)):
            return "resident"
        if parent is not None and _tokens(engine.resident(parent)):
            return "parent"
        return "anchor" if anchor and engine.anchor_tokens(call.agent) else "least-loaded"

    def _note(self, call: RoutedCall, engine: KnownEngine, is_new: bool, now: float) -> None:
        """The call is on its way: until a snapshot knows of it, this router does."""
        anchor = engine.anchor_tokens(call.agent)
        computed, _ = to_compute(call.prompt_tokens, engine.resident(call.workflow), anchor)
        context = max(call.prompt_tokens, int(self._mean_context)) if is_new else 0
        engine.send(Sent(now, call.workflow, call.agent, call.prompt_tokens, computed, context))


def _tokens(there: Resident) -> int:
    return there.device + there.host
