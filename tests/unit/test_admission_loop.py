"""The gate of an ingress and the coordinator together: what one says is what the other needs, over the wire."""

from __future__ import annotations

import asyncio

from coordinator_reports import MadeUpEngine, began, over

from cache_actor.cluster import Cluster
from cache_actor.limits import answer_to
from cache_actor.messages import RequestIdentity, decode, encode
from serving.admission import Admission, Ticket
from serving.config import AdmissionConfig
from serving.limits_feed import LimitsFeed

LIMIT_S = 10.0


class CoordinatorOfOneEngine:
    """Stands where the coordinator does, with its state and its answers."""

    def __init__(self, limit: int | None) -> None:
        self.cluster, self.engine, self.now = Cluster(), MadeUpEngine(), 0.0
        self.cluster.hear(self.engine.report(), self.now)
        self.limit = limit

    async def take(self, data: bytes) -> bytes:
        report = decode(data)
        self.cluster.engines["e"].limit = self.limit
        self.cluster.hear_ingress(report, self.now)  # type: ignore[arg-type]
        return encode(answer_to(self.cluster, report.ingress, self.now))  # type: ignore[union-attr]


class Loop:
    def __init__(self, limit: int | None) -> None:
        self.now = 50.0
        self.door = Admission(
            AdmissionConfig(pause_after_s=0), lambda: ["e"], retry_after_s=2, name="i", clock=lambda: self.now
        )
        self.door.refresh()
        self.coordinator = CoordinatorOfOneEngine(limit)
        self.feed = LimitsFeed(self.coordinator.take, self.door.report, self.door.apply)

    async def ask_once(self) -> None:
        task = asyncio.create_task(self.feed.run())
        answers = self.feed.counts["answers"]
        async with asyncio.timeout(LIMIT_S):
            while self.feed.counts["answers"] == answers:
                await asyncio.sleep(0)
        task.cancel()

    def call(self, workflow: str) -> Ticket:
        ticket = self.door.ask(RequestIdentity(workflow, "agent", source="header"))
        if not ticket.held:
            self.hear(workflow)
        return ticket

    def hear(self, workflow: str) -> None:
        """Its engine has reported a call of it."""
        now = self.coordinator.now = self.coordinator.now + 1
        report = self.coordinator.engine.report(began(workflow, at=now), over(workflow, at=now + 0.5, tokens=100))
        self.coordinator.cluster.hear(report, now)


async def test_what_the_coordinator_has_found_holds_at_the_gate_and_comes_back_as_figures() -> None:
    loop = Loop(limit=2)
    await loop.ask_once()
    tickets = [loop.call(workflow) for workflow in "abc"]
    assert [ticket.held for ticket in tickets] == [False, False, True]
    await loop.ask_once()
    ingresses = loop.coordinator.cluster.ingresses
    assert (ingresses.admitted("e"), ingresses.held("e")) == (2, 1)
    loop.coordinator.limit = None
    await loop.ask_once()
    assert await loop.door.goes(tickets[2])
    loop.hear("c")
    await loop.ask_once()
    assert (ingresses.admitted("e"), ingresses.held("e")) == (3, 0)
    told = {what for _, what, *_ in loop.coordinator.cluster.workflows["c"].decisions}
    assert {"held", "let_in"} <= told


async def test_a_workflow_that_has_to_give_up_its_place_counts_as_paused_until_it_goes_on() -> None:
    loop = Loop(limit=2)
    await loop.ask_once()
    for workflow in "ab":
        ticket = loop.call(workflow)
        ticket.lasting = True
        loop.door.leave(ticket)
    loop.coordinator.limit = 1
    await loop.ask_once()
    await loop.ask_once()
    paused = [state.id for state in loop.coordinator.cluster.workflows.values() if state.paused]
    assert len(paused) == 1
    waiting = loop.call(paused[0])
    assert waiting.held
    other = {"a", "b"}.difference(paused).pop()
    loop.door.over(other)
    await loop.ask_once()
    assert await loop.door.goes(waiting)
    assert not any(state.paused for state in loop.coordinator.cluster.workflows.values())
