"""Registry of workflows: which live, which idle, which have ended. Pure code; time is a parameter.

A workflow is *active* from its first call on: `active` while a call runs, `idle` between calls. It *ends* by a
final call, on request, or by an idle timeout; ending is idempotent, and a call after the end makes it active again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cache_actor.messages import RequestIdentity

MAX_AGENTS_PER_WORKFLOW = 256
OTHER_AGENTS = "(other)"


class State(StrEnum):
    ACTIVE = "active"
    IDLE = "idle"
    ENDED = "ended"


class EndReason(StrEnum):
    FINAL = "final"
    REQUESTED = "requested"
    IDLE_TIMEOUT = "idle_timeout"
    LIMIT = "limit"


@dataclass(slots=True)
class Workflow:
    """One task being solved by several agents. Times are seconds of the caller's clock."""

    id: str
    created: float
    last_seen: float
    source: str
    parent: str | None = None
    tenant: str | None = None
    priority: int | None = None
    calls: int = 0
    running: int = 0
    agents: dict[str, int] = field(default_factory=dict)
    current_agent: str | None = None
    ended: float | None = None
    end_reason: EndReason | None = None

    @property
    def state(self) -> State:
        if self.ended is not None:
            return State.ENDED
        return State.ACTIVE if self.running else State.IDLE


class WorkflowRegistry:
    """All workflows that are remembered, in the order of their last call.

    Bounded by `max_workflows`: a new one beyond it forgets the workflow that ended first; when none has ended, the
    one that has been idle longest is ended (`limit`) and forgotten. One with a call running, ended or not, is never
    forgotten; only when every workflow has one does the registry grow beyond the limit, by the calls that run.

    Args:
        idle_timeout_s: seconds without a call, from the end of the last one, after which a workflow ends.
        max_workflows: how many are remembered, ended ones included.
    """

    def __init__(self, idle_timeout_s: float, max_workflows: int) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._max_workflows = max_workflows
        # Live workflows by last activity and ended ones by end, so that the first of each is the next to go.
        self._live: OrderedDict[str, Workflow] = OrderedDict()
        self._ended: OrderedDict[str, Workflow] = OrderedDict()
        self._newly_ended: list[str] = []

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._live or workflow_id in self._ended

    def get(self, workflow_id: str) -> Workflow | None:
        return self._live.get(workflow_id) or self._ended.get(workflow_id)

    def workflows(self, state: State | None = None) -> Iterator[Workflow]:
        """The workflows in `state` (all by default), live ones first, each kind from the least recent."""
        for group in (self._live, self._ended):
            yield from (workflow for workflow in group.values() if state is None or workflow.state is state)

    def counts(self) -> dict[State, int]:
        active = sum(1 for workflow in self._live.values() if workflow.running)
        return {State.ACTIVE: active, State.IDLE: len(self._live) - active, State.ENDED: len(self._ended)}

    def begin_call(self, identity: RequestIdentity, now: float) -> Workflow:
        """A call of `identity` starts: makes its workflow active, for the first time or again."""
        workflow = self._live.get(identity.workflow) or self._revive(identity.workflow)
        if workflow is None:
            self._make_room()
            workflow = Workflow(identity.workflow, created=now, last_seen=now, source=identity.source)
        self._live[workflow.id] = workflow
        self._live.move_to_end(workflow.id)
        workflow.last_seen = now
        workflow.calls += 1
        workflow.running += 1
        workflow.parent = identity.parent or workflow.parent
        workflow.tenant = identity.tenant or workflow.tenant
        workflow.priority = identity.priority if identity.priority is not None else workflow.priority
        known = identity.agent in workflow.agents or len(workflow.agents) < MAX_AGENTS_PER_WORKFLOW
        agent = identity.agent if known else OTHER_AGENTS
        workflow.agents[agent] = workflow.agents.get(agent, 0) + 1
        workflow.current_agent = identity.agent
        return workflow

    def end_call(self, identity: RequestIdentity, now: float) -> None:
        """A call that `begin_call` announced is over, in whatever way. A final call ends its workflow."""
        workflow = self.get(identity.workflow)
        if workflow is None:
            return
        workflow.running = max(0, workflow.running - 1)
        workflow.last_seen = now
        if workflow.id in self._live:
            self._live.move_to_end(workflow.id)
        if identity.final:
            self.end(workflow.id, now, EndReason.FINAL)

    def end(self, workflow_id: str, now: float, reason: EndReason = EndReason.REQUESTED) -> Workflow | None:
        """Ends a workflow; its running calls go on. None for an unknown id; a second end changes nothing."""
        workflow = self._live.pop(workflow_id, None)
        if workflow is None:
            return self._ended.get(workflow_id)
        workflow.ended = now
        workflow.end_reason = reason
        self._ended[workflow_id] = workflow
        self._newly_ended.append(workflow_id)
        return workflow

    def expire(self, now: float) -> None:
        """Ends every workflow that has been idle for the timeout. O(number of those that end)."""
        running: list[str] = []
        for workflow in list(self._oldest_live(now - self._idle_timeout_s)):
            if workflow.running:
                running.append(workflow.id)
            else:
                self.end(workflow.id, now, EndReason.IDLE_TIMEOUT)
        for workflow_id in running:  # a long call is activity; without this it would be looked at every time
            self._live.move_to_end(workflow_id)
            self._live[workflow_id].last_seen = now

    def take_ended(self) -> list[str]:
        """The ids that ended since the last time this was asked, in order; each end is reported once."""
        ended, self._newly_ended = self._newly_ended, []
        return ended

    def _oldest_live(self, until: float) -> Iterator[Workflow]:
        for workflow in self._live.values():
            if workflow.last_seen > until:
                return
            yield workflow

    def _revive(self, workflow_id: str) -> Workflow | None:
        workflow = self._ended.pop(workflow_id, None)
        if workflow is not None:
            workflow.ended = None
            workflow.end_reason = None
        return workflow

    def _make_room(self) -> None:
        while len(self) >= self._max_workflows:
            over = _first_without_calls(self._ended) or _first_without_calls(self._live)
            if over is None:
                return
            self.end(over.id, over.last_seen, EndReason.LIMIT)
            del self._ended[over.id]


def _first_without_calls(workflows: OrderedDict[str, Workflow]) -> Workflow | None:
    return next((workflow for workflow in workflows.values() if not workflow.running), None)
