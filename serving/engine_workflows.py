"""Which workflows call an engine, and which of them have stopped to."""

from __future__ import annotations

from cache_actor.messages import RequestIdentity
from cache_actor.workflows import EndReason, WorkflowRegistry


class EngineWorkflows:
    """An engine's own registry of workflows, from which it finds out by itself who has been idle for too long.

    It hears every call that a workflow makes here, whichever ingress it comes by. An ingress may have seen only some
    of them, or be gone; so ingresses tell engines only of ends that clients ask for. A workflow whose call waits at
    an ingress for as long counts as idle here; what only it used is then the first to go, until that call comes.

    Args:
        idle_timeout_s: without a call, from the end of the last one. In seconds.
        max_workflows: that are remembered, those that have ended included.
    """

    def __init__(self, idle_timeout_s: float, max_workflows: int) -> None:
        self._registry = WorkflowRegistry(idle_timeout_s, max_workflows)

    def began(self, identity: RequestIdentity, now: float) -> None:
        """A call begins. Times are of one monotonic clock, in seconds."""
        self._registry.begin_call(identity, now)

    def over(self, identity: RequestIdentity, now: float) -> None:
        """A call that began is over, in whatever way."""
        self._registry.end_call(identity, now)

    def end(self, workflow: str, now: float) -> None:
        """A workflow is over, as is known already."""
        self._registry.end(workflow, now)

    def take_idle(self, now: float) -> list[str]:
        """The workflows that are over since this was asked last because they do not call any more."""
        self._registry.expire(now)
        return [workflow for workflow in self._registry.take_ended() if self._is_idle(workflow)]

    def _is_idle(self, workflow: str) -> bool:
        found = self._registry.get(workflow)
        return found is None or found.end_reason in (EndReason.IDLE_TIMEOUT, EndReason.LIMIT)
