"""The ingress's end: what it does when the coordinator answers, fails, hangs, dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from coordinator_reports import MadeUpEngine

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport, GateEvent
from cache_actor.coordinator import CacheCoordinator
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import Ask, encode
from serving.limits_feed import LimitsFeed

LIMIT_S = 10.0
STALE_S = 0.2


class Line:
    """To a coordinator which may be there, gone, silent or talk nonsense."""

    def __init__(self) -> None:
        self.coordinator: CacheCoordinator | None = None
        self.instead: bytes | None = None
        self.silent = False
        self.asked = 0

    async def ask(self, data: bytes) -> bytes:
        self.asked += 1
        if self.silent:
            await asyncio.sleep(3600)
        if self.instead is not None:
            return self.instead
        if self.coordinator is None:
            raise RuntimeError("the actor died")
        return await self.coordinator.take(data)

    def start(self) -> None:
        config = CoordinatorConfig(admission="fixed", admission_parameters={"workflows": 3})
        self.coordinator = CacheCoordinator(config)

    def kill(self) -> None:
        if self.coordinator is not None:
            for task in self.coordinator._tasks:
                task.cancel()
        self.coordinator = None


class Desk:
    """A gate with 2 workflows in and 1 that waits."""

    def __init__(self) -> None:
        self.line = Line()
        self.engine = MadeUpEngine()
        self.answers: list[AdmissionAnswer] = []
        self.number = 0
        self.broken = False
        self.feed = LimitsFeed(self.line.ask, self.report, self.answers.append, 0.01, 0.02, 0.1, STALE_S)
        self.task = asyncio.create_task(self.feed.run())

    def report(self) -> AdmissionReport:
        if self.broken:
            raise RuntimeError("a fault in the gate")
        self.number += 1
        return AdmissionReport("i", 1, self.number, {"e": 2}, {"": 1}, [], [GateEvent("w", "held", "", 1.0)])

    async def engine_reports(self) -> None:
        assert self.line.coordinator is not None
        await self.line.coordinator.take(encode(self.engine.report()))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def limit(self, wanted: dict[str, int | None]) -> None:
        await self.until(lambda: self.answers and self.answers[-1].limits == wanted)


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.task.cancel()
    desk.line.kill()


class TestFeed:
    async def test_limits_come_and_the_coordinator_knows_who_waits(self, desk: Desk) -> None:
        desk.line.start()
        await desk.limit({})  # no engine has reported yet
        await desk.engine_reports()
        await desk.limit({"e": 3})
        assert not desk.feed.stale
        assert desk.line.coordinator is not None
        status = await desk.line.coordinator.status()
        assert status["ingresses"] == 1
        admission = status["engines"][0]["admission"]
        assert (admission["limit"], admission["admitted"], admission["held"]) == (3, 2, 1)
        assert status["counts"]["gate_held"] >= 1

    async def test_without_a_coordinator_it_is_asked_again(self, desk: Desk) -> None:
        await desk.until(lambda: desk.line.asked >= 3)
        assert desk.answers == []
        assert desk.feed.stale

    async def test_one_that_dies_is_missed_once_and_heard_again_when_it_is_back(
        self, desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.line.start()
        await desk.engine_reports()
        await desk.limit({"e": 3})
        before = caplog.text
        desk.line.kill()
        await desk.until(lambda: desk.feed.stale)
        missed = desk.feed.counts["unanswered"]
        await desk.until(lambda: desk.feed.counts["unanswered"] >= missed + 5)
        assert caplog.text.count("says nothing of limits") == 1 + ("says nothing" in before)
        assert desk.answers[-1].limits == {"e": 3}  # what follows from it is the gate's to say
        desk.line.start()
        await desk.until(lambda: not desk.feed.stale)
        await desk.engine_reports()
        await desk.limit({"e": 3})

    async def test_a_short_silence_changes_nothing(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(desk.feed, "_stale_s", 3600.0)
        desk.line.start()
        await desk.engine_reports()
        await desk.limit({"e": 3})
        desk.line.silent = True
        await desk.until(lambda: desk.feed.counts["unanswered"] >= 2)
        assert desk.answers[-1].limits == {"e": 3}
        desk.line.silent = False
        answers = desk.feed.counts["answers"]
        await desk.until(lambda: desk.feed.counts["answers"] > answers)

    @pytest.mark.parametrize("nonsense", [b"", b"\x90", encode(Ask(1, "dump"))])
    async def test_what_is_no_answer_is_none(self, desk: Desk, nonsense: bytes) -> None:
        desk.line.instead = nonsense
        await desk.until(lambda: desk.feed.counts["unanswered"] >= 2)
        assert desk.answers == []

    async def test_a_fault_of_the_gate_does_not_end_it(self, desk: Desk) -> None:
        desk.broken = True
        await asyncio.sleep(0.05)
        desk.broken = False
        desk.line.start()
        await desk.until(lambda: desk.answers)
        assert not desk.task.done()
