"""A workflow as `/v1/workflows` shows it."""

from __future__ import annotations

import time
from typing import Any

from cache_actor.admission import Queued
from cache_actor.workflows import EndReason, State, Workflow


def workflow_view(workflow: Workflow, ingress: str, engine: str | None, queued: Queued | None) -> dict[str, Any]:
    """A JSON object. Times are Unix times in seconds.

    Args:
        workflow: times in seconds of this machine's monotonic clock.
        ingress: which knows this of it.
        engine: where it lives.
        queued: how it stands in the queue, if it waits to be let in.
    """
    return {
        "id": workflow.id,
        "object": "workflow",
        "state": workflow.state,
        "source": workflow.source,
        "parent": workflow.parent,
        "tenant": workflow.tenant,
        "priority": workflow.priority,
        "ingress": ingress,
        "engine": engine,
        "calls": workflow.calls,
        "running": workflow.running,
        "queue": None if queued is None else _queue_view(queued),
        "agents": workflow.agents,
        "current_agent": workflow.current_agent,
        "created": _wall_clock(workflow.created),
        "last_seen": _wall_clock(workflow.last_seen),
        "ended": _wall_clock(workflow.ended) if workflow.ended is not None else None,
        "end_reason": workflow.end_reason,
    }


def ended_elsewhere(workflow: str, ingress: str, engine: str) -> dict[str, Any]:
    """A workflow that its client ends at an ingress which does not know it, as far as is known there: a JSON object."""
    return {
        "id": workflow,
        "object": "workflow",
        "state": State.ENDED,
        "ingress": ingress,
        "engine": engine,
        "end_reason": EndReason.REQUESTED,
    }


def _queue_view(queued: Queued) -> dict[str, Any]:
    return {
        "place": queued.place,
        "waiting": queued.waiting,
        "waited_s": round(queued.waited_s, 1),
        "estimate_s": None if queued.estimate_s is None else round(queued.estimate_s, 1),
    }


def _wall_clock(monotonic: float) -> float:
    """Unix time in seconds, for people; nothing is decided by it."""
    return round(time.time() - time.monotonic() + monotonic, 3)
