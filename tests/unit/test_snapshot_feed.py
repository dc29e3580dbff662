"""Snapshots on their way from a coordinator to an ingress, which hears of engines within a moment, or does without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
import pytest_asyncio
from coordinator_reports import MadeUpEngine, began, cache_report, over

from cache_actor import snapshot_desk
from cache_actor.coordinator import CacheCoordinator
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import Ask, encode
from cache_actor.snapshot_messages import SnapshotDelta
from cache_actor.snapshots import EngineSnapshot, Resident
from serving.snapshot_feed import SnapshotFeed

LIMIT_S = 10.0


class Desk:
    """An ingress and its line to a coordinator that may be there or not."""

    def __init__(self) -> None:
        self.coordinator: CacheCoordinator | None = None
        self.instead: bytes | None = None
        self.engine = MadeUpEngine()
        self.seen: dict[str, EngineSnapshot] = {}
        self.feed = SnapshotFeed(self.ask, self.see, answer_limit_s=1.0, retry_s=0.01)
        self.task = asyncio.create_task(self.feed.run())

    async def ask(self, data: bytes) -> bytes:
        if self.instead is not None:
            return self.instead
        if self.coordinator is None:
            raise ConnectionError("nobody is there")
        return await self.coordinator.take(data)

    def see(self, snapshots: Iterable[EngineSnapshot]) -> None:
        self.seen |= {one.engine: one for one in snapshots}

    def start(self) -> CacheCoordinator:
        self.coordinator = CacheCoordinator(CoordinatorConfig())
        return self.coordinator

    def kill(self) -> None:
        if self.coordinator is not None:
            for task in self.coordinator._tasks:
                task.cancel()
            self.coordinator._link.close()
        self.coordinator = None

    async def report(self, *events: Any, **more: Any) -> None:
        assert self.coordinator is not None
        await self.coordinator.take(encode(self.engine.report(*events, **more)))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.task.cancel()
    desk.kill()


async def test_what_an_engine_reports_comes_to_the_ingress(desk: Desk) -> None:
    desk.start()
    await desk.report(began("w"), over("w"), cache=[cache_report(residency={"w": [300, 20]})])
    await desk.until(lambda: desk.seen)
    assert desk.seen["e"].workflows == {"w": Resident(300, 20)}
    assert abs(time.time() - desk.seen["e"].at) < LIMIT_S
    await desk.report(ended={"w": "final"})
    await desk.until(lambda: not desk.seen["e"].workflows)


async def test_a_coordinator_that_is_restarted_is_heard_again(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.start()
    await desk.report(began("w"), cache=[cache_report(residency={"w": [300, 20]})])
    await desk.until(lambda: desk.seen)
    desk.kill()
    missed = desk.feed.counts["unanswered"]
    await desk.until(lambda: desk.feed.counts["unanswered"] >= missed + 3)
    before = desk.seen["e"].version
    desk.start()
    desk.engine = MadeUpEngine(epoch=2)
    await desk.report(began("v"), cache=[cache_report(residency={"v": [70, 0]})])
    await desk.until(lambda: desk.seen["e"].version > before and desk.seen["e"].workflows)
    assert desk.seen["e"].workflows == {"v": Resident(70)}
    assert caplog.text.count("says nothing of engines") <= 2  # before the first, and when it was gone


async def test_nothing_is_told_while_the_coordinator_is_switched_off(desk: Desk) -> None:
    coordinator = desk.start()
    await desk.report(began("w"))
    await desk.until(lambda: desk.seen)
    await coordinator.switch("off")
    await asyncio.sleep(3 * snapshot_desk.PERIOD_S)
    last = desk.seen["e"].version
    answers = desk.feed.counts["answers"]
    await desk.until(lambda: desk.feed.counts["answers"] > answers + 1)
    assert desk.seen["e"].version == last
    await coordinator.switch("on")
    await desk.until(lambda: desk.seen["e"].version > last)


@pytest.mark.parametrize(
    "nonsense", [b"", b"\x90", encode(Ask(1, "dump")), encode(SnapshotDelta(7, 0.0, False, [], []))]
)
async def test_nonsense_is_not_taken_and_what_comes_after_is(desk: Desk, nonsense: bytes) -> None:
    desk.instead = nonsense
    await desk.until(lambda: desk.feed.counts["unanswered"] + desk.feed.counts["answers"] >= 3)
    assert not desk.seen
    desk.instead = None
    desk.start()
    await desk.report(began("w"))
    await desk.until(lambda: desk.seen)


async def test_many_who_listen_are_told_the_same(desk: Desk) -> None:
    coordinator = desk.start()
    heard: list[list[Iterable[EngineSnapshot]]] = [[] for _ in range(5)]
    feeds = [asyncio.create_task(SnapshotFeed(coordinator.take, one.append).run()) for one in heard]
    await desk.report(began("w"), cache=[cache_report(residency={"w": [9, 0]})])
    await desk.until(lambda: all(any(list(told) for told in one) for one in heard))
    for feed in feeds:
        feed.cancel()


async def test_nobody_who_listens_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_desk, "SILENCE_S", 0.05)
    monkeypatch.setattr(snapshot_desk, "PERIOD_S", 0.01)
    looks: list[float] = []

    def look(now: float) -> list[EngineSnapshot]:
        looks.append(now)
        return []

    desk = snapshot_desk.SnapshotDesk(look)
    task = asyncio.create_task(desk.run())
    await asyncio.sleep(0.05)
    assert not looks
    async with asyncio.timeout(LIMIT_S):
        await desk.after(-1)
        while True:
            before = len(looks)
            await asyncio.sleep(0.1)
            if len(looks) == before:
                break
    task.cancel()
