"""What the coordinator knows, as JSON for people who look."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cache_actor.decisions import in_words
from cache_actor.ingresses import Ingresses
from cache_actor.state import EngineState, WorkflowState
from cache_actor.work_rates import WorkCosts


def engine_status(engine: EngineState, costs: WorkCosts, ingresses: Ingresses, now: float) -> dict[str, Any]:
    """An engine; ages in seconds, counts in tokens."""
    return {
        "id": engine.id,
        "epoch": engine.epoch,
        "heard_s_ago": round(now - engine.last_heard, 3),
        "plan": engine.plan,
        "planned_s_ago": round(now - engine.planned_at, 3) if engine.planned_at else None,
        "workflows": len(engine.workflows),
        "running": engine.running,
        "waiting": engine.waiting,
        "orders": len(engine.orders),
        "pending_tokens": engine.pending_tokens,
        "needed_tokens": engine.needed,
        "draining": engine.draining,
        "prefill_token_ms": round(1000 * costs.prefill_token_s, 4),
        "running_call_s": round(costs.running_call_s, 4),
        "admission": {
            "limit": engine.limit,
            "found": engine.found,
            "admitted": ingresses.admitted(engine.id),
            "held": ingresses.held(engine.id),
            "figures": engine.figures,
        },
        "work": asdict(engine.work),
        "pools": engine.pools,
        "counters": engine.counters,
    }


def why(state: WorkflowState, living: bool, decisions: bool = True) -> dict[str, Any]:
    """What is expected of a workflow, and (with `decisions`) what was decided about it and why, the oldest first."""
    forecast = state.forecast
    told: dict[str, Any] = {
        "id": state.id,
        "living": living,
        "engine": state.engine or None,
        "calls": state.path.length,
        "running": state.path.running,
        "paused": state.paused,
        "agents": state.path.agents[-8:],
        "residency": {name: {"device": one.device, "host": one.host} for name, one in state.residency.items()},
        "forecast": None,
    }
    if forecast is not None:
        told["forecast"] = {
            "model": forecast.model,
            "made_at": round(forecast.made_at, 3),
            "after_calls": forecast.after,
            "next": dict(sorted(forecast.next.items(), key=lambda item: -item[1])[:8]),
            "survival": list(forecast.survival),
        }
    if decisions:
        told["decisions"] = [
            {"at": round(one[0], 3), "what": one[1], "engine": one[2], "text": in_words(one)} for one in state.decisions
        ]
    return told
