"""What the coordinator knows of engines, as routers are told it. Pure; time is a parameter, in seconds since 1970."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from dataclasses import replace

from cache_actor.cluster import Cluster
from cache_actor.snapshots import EngineSnapshot, Resident
from cache_actor.state import EngineState, WorkflowState
from cache_actor.work_rates import WorkCosts, costs_of

# An agent that has called on an engine within so many seconds is said to have its anchor there.
ANCHOR_S = 60.0
# A call that was sent so short before an engine's report may not be in it, in seconds.
ON_ITS_WAY_S = 0.1
# What contexts amount to is counted anew at one engine in so many at a time: it changes slowly, and all workflows of
# an engine are looked at.
COUNTED_IN_TURNS = 5
# Living workflows of which routers are told, the latest; with the longest ids all of them fit in a message.
WORKFLOWS_TOLD = 15_000
_TOKEN_BYTES = 4


def snapshots_of(cluster: Cluster, now: float) -> list[EngineSnapshot]:
    """One of each engine that has said how large it is."""
    workflows: dict[str, dict[str, Resident]] = {engine: {} for engine in cluster.engines}
    for state in itertools.islice(reversed(cluster.workflows.values()), WORKFLOWS_TOLD):
        for name, there in state.residency.items():
            if name in workflows:
                workflows[name][state.id] = there
    engines = [engine for engine in cluster.engines.values() if engine.work.device_tokens > 0]
    anchors = {engine.id: _anchors(cluster, engine, now) for engine in engines}
    turns = math.ceil(len(engines) / COUNTED_IN_TURNS)
    for engine in heapq.nsmallest(turns, engines, key=lambda one: one.needed_at):
        engine.needed, engine.needed_at = _needed(cluster, engine, anchors[engine.id]), now
    costs = costs_of({engine.id: engine.rates for engine in engines})
    return [_snapshot(engine, workflows[engine.id], anchors[engine.id], costs[engine.id], now) for engine in engines]


def _anchors(cluster: Cluster, engine: EngineState, now: float) -> dict[str, int]:
    return {
        agent: len(cluster.anchors[agent]) // _TOKEN_BYTES
        for agent, at in (engine.agents | engine.warming).items()
        if agent in cluster.anchors and now - at <= ANCHOR_S
    }


def _snapshot(
    engine: EngineState, workflows: dict[str, Resident], anchors: dict[str, int], costs: WorkCosts, now: float
) -> EngineSnapshot:
    coming: Counter[str] = Counter()
    for workflow, _, tokens, _ in engine.orders.values():
        coming[workflow] += tokens
    for workflow, tokens in coming.items():
        if workflow in workflows:
            workflows[workflow] = replace(workflows[workflow], coming=tokens)
    return EngineSnapshot(
        engine.id,
        int(1000 * now),
        engine.last_heard - ON_ITS_WAY_S,
        workflows,
        anchors,
        engine.pending_tokens,
        engine.running,
        engine.needed,
        engine.work.device_tokens,
        engine.draining,
        costs.prefill_token_s,
        costs.running_call_s,
    )


def _needed(cluster: Cluster, engine: EngineState, anchors: dict[str, int]) -> int:
    """What its workflows need there: the contexts, but of each only what is beyond its agent's anchor, and anchors."""
    own = sum(_context(cluster.workflows[name], engine.id, anchors) for name in engine.workflows)
    return own + sum(anchors.values())


def _context(state: WorkflowState, engine: str, anchors: dict[str, int]) -> int:
    there = state.residency.get(engine)
    held = 0 if there is None else there.device + there.host
    agent = state.path.agents[-1] if state.path.agents else ""
    return max(0, max(held, state.path.context) - anchors.get(agent, 0))
