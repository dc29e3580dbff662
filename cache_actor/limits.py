"""What the coordinator answers an ingress: its share of each engine's limit, and who could be paused. Pure.

A limit is what the coordinator has found, or the number that somebody has switched admission to, at any ingress.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from cache_actor.admission_messages import AdmissionAnswer, IdleWorkflow
from cache_actor.cluster import Cluster
from cache_actor.state import EngineState, WorkflowState

# Workflows named to an ingress for one engine at once; the next answer names others.
MAX_IDLE = 128


def answer_to(cluster: Cluster, ingress: str, now: float) -> AdmissionAnswer:
    """For an ingress that has just reported. `now` in seconds since 1970."""
    limits: dict[str, int | None] = {}
    idle: list[IdleWorkflow] = []
    admitted = cluster.ingresses.known[ingress].admitted
    mode, switched = cluster.ingresses.mode_for(ingress)
    for engine in cluster.engines.values():
        limit = engine.limit if mode == "on" else mode if isinstance(mode, int) and mode >= 1 else None
        if limit is not None:
            limit = split(limit, cluster.ingresses.demands(engine.id))[ingress]
            if admitted.get(engine.id, 0) > limit:
                idle += _idle(cluster, engine, now)
        limits[engine.id] = limit
    return AdmissionAnswer(limits, idle, mode, switched, *cluster.ingresses.router())


def _idle(cluster: Cluster, engine: EngineState, now: float) -> list[IdleWorkflow]:
    between = (
        state for name in engine.workflows if not (state := cluster.workflows[name]).path.running and not state.paused
    )
    return [
        IdleWorkflow(state.id, state.path.context, state.path.gap_s(now), _remaining(state))
        for state in heapq.nsmallest(MAX_IDLE, between, key=lambda state: state.path.context)
    ]


def _remaining(state: WorkflowState) -> float:
    return 1.0 if state.forecast is None else float(state.forecast.remaining())


def split(limit: int, demands: Mapping[str, int]) -> dict[str, int]:
    """How many workflows of one engine's limit each ingress may have in.

    In proportion to what it has in and waiting (largest remainder, of equals the first by name), so that all clients
    wait for about as long whichever ingress they came to. Every ingress gets at least 1, or its clients could wait for
    ever: with less places than ingresses that have somebody, the limit is exceeded by the difference. The 1 of an
    ingress that has nobody is no loss to the others; if none has, all get the same.

    Args:
        limit: at least 1.
        demands: workflows of each ingress, in and waiting; at least 0.
    """
    active = sorted(name for name, demand in demands.items() if demand > 0)
    if not active:
        active, demands = sorted(demands), dict.fromkeys(demands, 1)
    given = dict.fromkeys(demands, 1)
    left = limit - len(active)
    if left <= 0:
        return given
    total = sum(demands[name] for name in active)
    exact = {name: limit * demands[name] / total for name in active}
    # Who would get less than 1 has got 1; the others share what is left by what they lack.
    lacking = {name: max(0.0, exact[name] - 1) for name in active}
    whole = sum(lacking.values())
    parts = {name: left * lack / whole if whole else left / len(active) for name, lack in lacking.items()}
    for name in active:
        given[name] += int(parts[name])
    rest = limit - sum(given[name] for name in active)
    for name in sorted(active, key=lambda one: (int(parts[one]) - parts[one], one))[:rest]:
        given[name] += 1
    return given
