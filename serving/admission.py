"""The door of the ingress: which calls go on to the engines at once, and which are held until their workflow is let in.

What is decided is `cache_actor.admission.Gate`'s; here are the clock, the calls that wait, and where limits come from:
the coordinator's latest answer, a number that somebody has set, or nobody.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cache_actor.admission import Bounds, Gate, Queued, Refused
from cache_actor.admission_messages import MAX_PAUSED, AdmissionAnswer, AdmissionReport
from cache_actor.messages import RequestIdentity
from serving.admission_metrics import AdmissionMetrics
from serving.config import AdmissionConfig, AdmissionMode
from serving.errors import ApiError

# How often engines, limits and those who wait for too long are looked at, in seconds.
PERIOD_S = 0.25
# Of two switches in clocks that differ the second is at least so much later, in seconds.
_LATER_S = 1e-3
_NAMED: Mapping[str, AdmissionMode] = {"on": "on", "off": "off"}
# Of the tenants with most that waits, so many are shown.
SHOWN_TENANTS = 50


@dataclass(slots=True, eq=False)
class Ticket:
    """A call at the door.

    Attributes:
        engine: where it is to go; None: that is for the router to say.
        asked: when it came, in seconds of the door's clock.
        waited_s: how long it was held, once it has gone.
        lasting: whether its workflow is expected to make another call; false as long as the call has not been answered.
    """

    workflow: str
    asked: float
    engine: str | None = None
    waited_s: float = 0.0
    lasting: bool = False
    _goes: asyncio.Future[bool] | None = field(default=None, repr=False)

    @property
    def held(self) -> bool:
        return self._goes is not None and not self._goes.done()

    @property
    def queue_ms(self) -> int:
        return round(1000 * self.waited_s)


class Admission:
    """Who may call now. One a ingress; all of it runs in one event loop.

    Args:
        config: how.
        engines: the engines that there are now.
        retry_after_s: what refused clients are told when nobody knows better, in seconds.
        name: the ingress's, for the coordinator.
        metrics: where figures go; None: nowhere.
        clock: seconds, monotonic.
        alone: whether there is no other ingress.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        engines: Callable[[], Sequence[str]],
        retry_after_s: int,
        name: str = "",
        metrics: AdmissionMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        alone: bool = True,
    ) -> None:
        self._config = config
        self._engines = engines
        self._retry_after_s = retry_after_s
        self._metrics = metrics
        self._clock = clock
        self._gate = Gate(
            Bounds(config.max_wait_s, config.max_waiting, config.idle_s, config.pause_after_s, config.weights, alone)
        )
        self._held: dict[str, list[Ticket]] = {}
        self._name, self._epoch, self._numbers = name, time.time_ns() // 1_000_000, itertools.count(1)
        self._answer: Mapping[str, int | None] = {}
        self._answer_mode: str | int = config.mode
        self._switched = 0.0
        self._answered = -math.inf
        self._limits: dict[str, int | None] = {}
        self.mode: AdmissionMode = config.mode

    @property
    def waiting(self) -> int:
        """Calls that are held of workflows that have never been in."""
        return self._gate.new_calls

    def ask(self, identity: RequestIdentity) -> Ticket:
        """A call has come. If its ticket is `held`, wait for `goes`; in any case `leave` in the end.

        Raises:
            ApiError: 429, it may not even wait.
        """
        ticket = Ticket(identity.workflow, self._clock())
        try:
            engine = self._gate.ask(
                ticket.workflow, ticket.asked, identity.tenant or "", identity.priority or 0, identity.parent or ""
            )
        except Refused as refused:
            raise self._refused(refused) from None
        if engine is not None:
            ticket.engine = self._wanted(engine)
            return ticket
        ticket._goes = asyncio.get_running_loop().create_future()
        self._held.setdefault(ticket.workflow, []).append(ticket)
        self._let_in()
        return ticket

    async def goes(self, ticket: Ticket, limit_s: float | None = None) -> bool:
        """Whether a held call may go, which is waited for, at most `limit_s` seconds.

        Raises:
            ApiError: 410, the workflow was ended meanwhile.
        """
        assert ticket._goes is not None, "it was never held"
        await asyncio.wait({ticket._goes}, timeout=limit_s)
        if not ticket._goes.done():
            return False
        if not ticket._goes.result():
            raise ApiError(410, f"workflow {ticket.workflow!r} was ended while the call waited", "workflow_ended")
        return True

    def leave(self, ticket: Ticket) -> None:
        """The call is over, in whatever way, and whether it has gone or not."""
        if ticket._goes is None or (ticket._goes.done() and ticket._goes.result()):
            self._gate.done(ticket.workflow, self._clock(), ticket.lasting)
        elif not ticket._goes.done():
            ticket._goes.cancel()
            tickets = self._held[ticket.workflow]
            tickets.remove(ticket)
            if not tickets:
                del self._held[ticket.workflow]
            self._gate.left(ticket.workflow)
        self._let_in()

    def over(self, workflow: str) -> None:
        """A workflow has ended. Calls of it that are held fail."""
        self._gate.over(workflow, self._clock())
        for ticket in self._held.pop(workflow, ()):
            assert ticket._goes is not None, "it is held"
            ticket._goes.set_result(False)
        self._let_in()

    def placed(self, workflow: str, engine: str) -> None:
        """An engine has answered a call of a workflow: it lives there."""
        if engine not in self._limits:  # it has just come, or is just gone
            self.refresh()
        self._gate.placed(workflow, engine)

    def report(self) -> AdmissionReport:
        """How things stand, and what has happened since the last report: what limits are found from."""
        wall_clock = time.time() - self._clock()
        return AdmissionReport(
            self._name,
            self._epoch,
            next(self._numbers),
            admitted={engine: self._gate.count(engine) for engine in self._limits},
            held=self._gate.held_by_engine(),
            paused=list(itertools.islice(self._gate.paused, MAX_PAUSED)),
            events=[replace(event, at=event.at + wall_clock) for event in self._gate.take_events()],
            mode=self.mode,
            switched=self._switched,
        )

    def apply(self, answer: AdmissionAnswer) -> None:
        """What the coordinator has answered."""
        self._answer, self._answer_mode, self._answered = answer.limits, answer.mode, self._clock()
        if answer.switched > self._switched and (mode := _as_mode(answer.mode)) is not None:
            self.mode, self._switched = mode, answer.switched  # at another ingress
        for one in answer.idle:
            self._gate.note(one.workflow, one.tokens, one.gap_s, one.remaining)
        self.refresh()

    def switch(self, mode: AdmissionMode) -> None:
        """Another mode from now on: `on`, `off`, or a number of workflows for each engine. Other ingresses follow when
        the coordinator tells them."""
        self.mode, self._switched = mode, max(time.time(), self._switched + _LATER_S)
        self.refresh()

    def refresh(self) -> None:
        """Takes in what has changed with time, engines and limits. While no engine is there, what was there counts, and
        those who wait go on waiting."""
        if engines := self._engines():
            limits = self._found()
            self._limits = {engine: limits.get(engine) for engine in engines}
            self._gate.set_limits(self._limits, self._clock())
        self._let_in()

    async def run(self) -> None:
        """Looks at all that changes with time, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.refresh()
            if self._metrics is not None:
                inside = sum(self._gate.count(engine) for engine in self._limits)
                self._metrics.show(self._gate.held, inside, self._gate.counts)

    def queued(self, workflow: str) -> Queued | None:
        """How a workflow stands in the queue; None if it does not wait."""
        return self._gate.queued(workflow, self._clock())

    def status(self) -> dict[str, Any]:
        """For people and for `GET /v1/admission`."""
        age_s = self._clock() - self._answered
        return {
            "ingress": self._name,
            "mode": self.mode,
            "limited": self._gate.limited,
            "answered_s_ago": None if math.isinf(age_s) else round(age_s, 3),
            "held": self._gate.held,
            "held_calls": sum(len(tickets) for tickets in self._held.values()),
            "engines": [
                {"id": engine, "limit": limit, "admitted": self._gate.count(engine)}
                for engine, limit in sorted(self._limits.items())
            ],
            "tenants": [
                {"id": one.name or None, "weight": one.weight, "held": one.waiting, "workflows": one.members}
                for one in heapq.nlargest(
                    SHOWN_TENANTS, self._gate.tenants(), key=lambda one: (one.waiting, one.members)
                )
            ],
            "counts": dict(self._gate.counts),
        }

    def _found(self) -> Mapping[str, int | None]:
        """Limits by engine; an engine that is not there has none."""
        if self.mode == "off":
            return {}
        fresh = self._clock() - self._answered <= self._config.stale_after_s
        if self.mode == "on":
            return self._answer if fresh else {}
        whole: dict[str, int | None] = dict.fromkeys(self._engines(), self.mode)
        return {**whole, **self._answer} if fresh and self._answer_mode == self.mode else whole

    def _let_in(self) -> None:
        if not self._held:
            return
        now = self._clock()
        nowhere = bool(self._limits) and not self._engines()  # a place that is free there is none
        for workflow, engine in self._gate.admitted(now, overdue=nowhere):
            for ticket in self._held.pop(workflow):
                ticket.engine = self._wanted(engine)
                ticket.waited_s = now - ticket.asked
                assert ticket._goes is not None, "it is held"
                ticket._goes.set_result(True)
                if self._metrics is not None:
                    self._metrics.waited(ticket.waited_s)

    def _wanted(self, engine: str) -> str | None:
        """Without limits the router places workflows, by what caches share."""
        return engine if engine and self._gate.limited else None

    def _refused(self, refused: Refused) -> ApiError:
        retry_after_s = max(self._retry_after_s, math.ceil(refused.retry_after_s or 0))
        if refused.reason == "full":
            reason = f"{self._config.max_waiting} calls wait for a place already, as many as may"
        else:
            reason = f"a new workflow would have to wait for longer than {self._config.max_wait_s:g} s"
        return ApiError(429, f"the server is full: {reason}", "queue_full", retry_after_s=retry_after_s)


def _as_mode(told: str | int) -> AdmissionMode | None:
    """What a message says, if it is a mode."""
    if isinstance(told, str):
        return _NAMED.get(told)
    return told if told >= 1 else None
