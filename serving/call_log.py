"""What an engine's replica knows of the calls it answers, and tells the coordinator. Pure; time is a parameter."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

from cache_actor.messages import Anchor, CallEvent, EngineReport, RequestIdentity, SyncReport, WorkflowSeen
from cache_actor.paths import CallPath
from serving.anchors import AnchorBook
from serving.calls import Usage
from serving.health import Load

# Events that wait for a coordinator which does not listen; beyond it, it is told how things stand instead.
MAX_EVENTS = 1024
# How much of how many workflows one report tells anew.
SEEN_WORKFLOWS = 32
SEEN_CALLS = 24
ANCHORS_TOLD = 4
# Ends that wait; of those before a coordinator hears from others' silence. And how many one report tells.
MAX_ENDED, ENDED_TOLD = 20_000, 1000


class CallLog:
    """Living workflows with their paths, and what has happened since the last report.

    Args:
        engine, epoch: as `SyncReport` has them.
        max_workflows: living ones that are remembered; beyond it the one without a call for longest is not.
    """

    def __init__(self, engine: str, epoch: int, max_workflows: int) -> None:
        self.engine = engine
        self.epoch = epoch
        self.applied_plan = 0
        self._max_workflows = max_workflows
        self._number = 0
        self._paths: OrderedDict[str, tuple[str | None, CallPath]] = OrderedDict()
        self._events: list[CallEvent] = []
        self._ended: dict[str, str] = {}
        self._cache: list[EngineReport] = []
        self._untold: dict[str, None] = {}
        self._anchors = AnchorBook()
        self._warmed: dict[str, bool] = {}

    @property
    def is_behind(self) -> bool:
        """Whether the coordinator has still to be told of workflows that it does not know."""
        return bool(self._untold)

    def emptied(self) -> None:
        """The engine holds nothing any more: to the coordinator it is another one from now on."""
        self.epoch += 1

    def began(self, identity: RequestIdentity, at: float, prompt_tokens: int) -> None:
        """A call begins; `at` in seconds since 1970, its prompt's length 0 if not known yet."""
        _, path = self._paths.setdefault(identity.workflow, (identity.parent, CallPath()))
        self._paths.move_to_end(identity.workflow)
        while len(self._paths) > self._max_workflows:
            self._untold.pop(self._paths.popitem(last=False)[0], None)
        path.began(identity.agent, at, prompt_tokens)
        self._ended.pop(identity.workflow, None)
        self._add(CallEvent(identity.workflow, identity.agent, False, at, prompt_tokens, parent=identity.parent))

    def over(self, identity: RequestIdentity, at: float, usage: Usage, prompt: Sequence[int] = ()) -> None:
        """A call that has begun is over, in whatever way; `prompt` its token ids, empty if not known."""
        if usage.output_tokens:  # a prompt that the engine refused may be more than it can hold
            self._anchors.answered(identity.agent, identity.workflow, prompt)
        known = self._paths.get(identity.workflow)
        if known is not None:
            known[1].over(identity.agent, at, usage.prompt_tokens, usage.output_tokens)
        self._add(
            CallEvent(
                identity.workflow,
                identity.agent,
                True,
                at,
                usage.prompt_tokens,
                usage.output_tokens,
                usage.hit_device,
                usage.hit_host,
                identity.parent,
                usage.hit_storage,
            )
        )

    def end(self, workflow: str, how: str) -> None:
        """A workflow is over (`final`, `deleted`, `idle`)."""
        self._paths.pop(workflow, None)
        self._untold.pop(workflow, None)
        self._ended[workflow] = how
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def left(self, workflow: str) -> None:
        """A workflow lives on another engine now."""
        self._paths.pop(workflow, None)
        self._untold.pop(workflow, None)

    def warmed(self, agent: str, done: bool) -> None:
        """A warm-up of an agent's anchor is over."""
        self._warmed[agent] = done

    def answered(self, report: EngineReport) -> None:
        """The scheduler has answered a plan."""
        self.applied_plan = max(self.applied_plan, report.applied)
        self._cache.append(report)

    def tell_all(self) -> None:
        """The coordinator does not know what lives here."""
        self._untold = dict.fromkeys(self._paths)
        self._anchors.tell_all()

    def report(self, load: Load) -> SyncReport:
        """The next report; what is in it is told."""
        self._number += 1
        seen = [self._seen(workflow) for workflow in list(self._untold)[:SEEN_WORKFLOWS]]
        for one in seen:
            del self._untold[one.workflow]
        ended = dict(itertools.islice(self._ended.items(), ENDED_TOLD))
        report = SyncReport(
            self.engine,
            self.epoch,
            self._number,
            self.applied_plan,
            self._events,
            ended,
            seen,
            self._cache,
            [Anchor(agent, ids) for agent, ids in self._anchors.untold(ANCHORS_TOLD)],
            self._warmed,
            load.running,
            load.waiting,
            load.pressure,
            load.work,
            load.pending_tokens,
            load.draining,
        )
        for workflow in ended:
            del self._ended[workflow]
        self._events, self._cache, self._warmed = [], [], {}
        return report

    def lost(self, report: SyncReport) -> None:
        """Nobody may have heard a report: ends and receipts are told again, and of living workflows all."""
        self._ended = {
            workflow: how for workflow, how in report.ended.items() if workflow not in self._paths
        } | self._ended
        self._cache = report.cache + self._cache
        self._warmed = report.warmed | self._warmed
        self._events.clear()
        self._number += 1  # so that a coordinator which has heard it knows that its answer was not
        self.tell_all()

    def _add(self, event: CallEvent) -> None:
        self._events.append(event)
        if len(self._events) > MAX_EVENTS:
            self._events.clear()
            self._number += 1
            self.tell_all()

    def _seen(self, workflow: str) -> WorkflowSeen:
        parent, path = self._paths[workflow]
        agents, numbers = path.told(SEEN_CALLS)
        return WorkflowSeen(workflow, parent, agents, numbers, path.length, min(path.running, len(agents)))
