"""The replica's end: what it does when the coordinator answers, fails, hangs, or answers somebody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import (
    MAX_MESSAGE_BYTES,
    Anchor,
    EnginePlan,
    EngineReport,
    RequestIdentity,
    SyncAnswer,
    SyncReport,
    decode,
    encode,
)
from serving import coordination
from serving.call_log import CallLog
from serving.calls import Usage
from serving.coordination import MIDDLE_PRIORITY, Coordination
from serving.health import Load
from serving.link import Address, LinkServer

EPOCH = 7
WHO = RequestIdentity("w", "coder")
LIMIT_S = 10.0


class Method:
    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class Coordinator:
    """Stands for its handle and its replica: answers by a list of answers, the last one for ever."""

    def __init__(self) -> None:
        self.reports: list[SyncReport] = []
        self.answers: list[SyncAnswer | Exception | bytes | None] = [SyncAnswer(EPOCH, False, None)]
        self.server = LinkServer(self._sync, "127.0.0.1", MAX_MESSAGE_BYTES)
        self.address = Method(self._address)

    async def _address(self) -> Address:
        return self.server.address

    async def _sync(self, data: bytes) -> bytes:
        report = decode(data)
        assert isinstance(report, SyncReport)
        self.reports.append(report)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.sleep(3600)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else encode(answer)  # type: ignore[arg-type]


class Scheduler:
    """Stands for the way to the scheduler."""

    def __init__(self) -> None:
        self.plans: list[EnginePlan] = []
        self.refuses = ""
        self.silent = False

    async def carry_out(self, plan: EnginePlan) -> EngineReport:
        self.plans.append(plan)
        if self.silent:
            raise TimeoutError
        applied = 0 if self.refuses else plan.plan
        return EngineReport(plan.plan, not self.refuses, self.refuses, [], {}, {}, {}, [], applied)


class Desk:
    def __init__(self) -> None:
        self.seen: list[EnginePlan] = []
        self.warming = 0
        self.at_once = 0
        self.coordinator = Coordinator()
        self.scheduler = Scheduler()
        self.warmed: list[list[int]] = []
        self.warm_error: Exception | None = None
        config = CoordinatorConfig(heartbeat_s=0.05, coalesce_s=0.001, period_s=0.002, over_s=0.01)
        self.log = CallLog("e", EPOCH, 100)
        self.talk = Coordination(
            config,
            self.coordinator,
            self.log,
            self.scheduler,  # type: ignore[arg-type]
            lambda: Load(1, 2),
            self.warm,
            self.seen.append,
        )
        self.task = asyncio.create_task(self.talk.run())

    async def warm(self, ids: list[int]) -> bool:
        self.warming += 1
        self.at_once = max(self.at_once, self.warming)
        await asyncio.sleep(0.005)
        self.warming -= 1
        self.warmed.append(ids)
        if self.warm_error is not None:
            raise self.warm_error
        return True

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(coordination, "RETRY_S", 0.02)
    monkeypatch.setattr(coordination, "ANSWER_LIMIT_S", 0.2)
    desk = Desk()
    yield desk
    desk.task.cancel()
    desk.coordinator.server.close()


@contextlib.asynccontextmanager
async def opened(*answers: SyncAnswer | Exception | None) -> AsyncIterator[Desk]:
    """A desk whose first report is answered so, too."""
    desk = Desk()
    desk.coordinator.answers = list(answers)
    try:
        yield desk
    finally:
        desk.task.cancel()


def plan(number: int, **fields: Any) -> EnginePlan:
    return EnginePlan(number, 10.0, [], {"w": {"coder": 5}}, [], **fields)


class TestTalk:
    async def test_calls_are_reported_soon_and_silence_at_heartbeats(self, desk: Desk) -> None:
        desk.talk.began(WHO, 10)
        desk.talk.over(WHO, Usage(True, 10, 3, 4, 5), ())
        await desk.until(lambda: sum(len(report.events) for report in desk.coordinator.reports) == 2)
        count = len(desk.coordinator.reports)
        await desk.until(lambda: len(desk.coordinator.reports) >= count + 3)
        assert (desk.coordinator.reports[-1].running, desk.coordinator.reports[-1].waiting) == (1, 2)

    async def test_a_burst_of_calls_is_a_few_reports(self, desk: Desk) -> None:
        desk.task.cancel()
        config = CoordinatorConfig(heartbeat_s=5, plan_ttl_s=20, coalesce_s=0.001, period_s=0.2, over_s=0.4)
        talk = Coordination(config, desk.coordinator, desk.log, desk.scheduler, Load, desk.warm)  # type: ignore[arg-type]
        desk.task = asyncio.create_task(talk.run())
        for number in range(50):
            talk.began(RequestIdentity(f"w{number}", "coder"), 1)
            talk.over(RequestIdentity(f"w{number}", "coder"), Usage(True, 1, 1), ())
            await asyncio.sleep(0.002)
        await desk.until(lambda: sum(len(report.events) for report in desk.coordinator.reports) == 100)
        assert len(desk.coordinator.reports) <= 6

    async def test_a_plan_is_carried_out_and_its_report_goes_up(self, desk: Desk) -> None:
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, plan(4)), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: any(report.cache for report in desk.coordinator.reports))
        assert [one.plan for one in desk.scheduler.plans] == [4]
        assert desk.seen == [plan(4)]
        assert desk.coordinator.reports[-1].applied_plan == 4

    async def test_who_waits_at_the_door_counts_as_long_as_the_coordinator_is_there(self, desk: Desk) -> None:
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, None, held=2.5)]
        await desk.until(lambda: desk.talk.held == 2.5)
        desk.coordinator.answers = [RuntimeError("it is not well")]
        await desk.until(lambda: desk.talk.held == 0.0)
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, None, held=1.0)]
        await desk.until(lambda: desk.talk.held == 1.0)

    async def test_a_plan_for_another_epoch_is_dropped(self, desk: Desk) -> None:
        desk.coordinator.answers = [SyncAnswer(EPOCH - 1, False, plan(4)), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: len(desk.coordinator.reports) >= 3)
        assert desk.scheduler.plans == []

    async def test_priorities_are_for_the_replica_alone(self, desk: Desk) -> None:
        only = EnginePlan(4, 10.0, [], {}, [], priorities={"w": 90})
        assert desk.talk.priority("w") == MIDDLE_PRIORITY
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, only), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: desk.talk.priority("w") == 90)
        assert desk.scheduler.plans == []
        desk.talk.ended("w", "final")
        assert desk.talk.priority("w") == MIDDLE_PRIORITY

    async def test_a_coordinator_that_does_not_know_the_engine_is_told_all(self, desk: Desk) -> None:
        desk.talk.began(WHO, 10)
        await desk.until(lambda: any(report.events for report in desk.coordinator.reports))
        desk.coordinator.answers = [SyncAnswer(EPOCH, True, None), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: any(report.seen for report in desk.coordinator.reports))


class TestWarmUp:
    @pytest.mark.parametrize("error", [None, ValueError("too long")])
    async def test_an_anchor_is_computed_and_the_coordinator_hears_of_it(
        self, desk: Desk, error: Exception | None
    ) -> None:
        desk.warm_error = error
        order = EnginePlan(4, 10.0, [], {}, [], warm_ups=[Anchor("coder", b"\x05\0\0\0\x06\0\0\0")])
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, order), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: any(report.warmed for report in desk.coordinator.reports))
        assert desk.warmed == [[5, 6]]
        assert next(one.warmed for one in desk.coordinator.reports if one.warmed) == {"coder": error is None}
        assert desk.scheduler.plans == []


class TestWelcome:
    async def test_a_new_engine_waits_for_the_anchors_it_is_told_to_warm_up_one_after_the_other(self) -> None:
        agents = ("coder", "tester", "critic")
        anchors = [Anchor(agent, bytes([number, 0, 0, 0])) for number, agent in enumerate(agents)]
        order = EnginePlan(4, 10.0, [], {}, [], warm_ups=anchors)
        async with opened(SyncAnswer(EPOCH, False, order), SyncAnswer(EPOCH, False, None)) as desk:
            await desk.talk.welcomed(LIMIT_S)
            assert desk.warmed == [[0], [1], [2]]
            assert desk.at_once == 1

    async def test_without_a_coordinator_it_goes_on_at_once(self) -> None:
        async with opened(RuntimeError("there is none")) as desk, asyncio.timeout(LIMIT_S):
            await desk.talk.welcomed(10 * LIMIT_S)
            assert not desk.talk.connected

    async def test_it_waits_no_longer_than_the_limit_and_only_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coordination, "ANSWER_LIMIT_S", 10 * LIMIT_S)
        async with opened(None) as desk, asyncio.timeout(LIMIT_S):
            await desk.talk.welcomed(0.05)
            await desk.talk.welcomed(10 * LIMIT_S)


class TestTrouble:
    @pytest.mark.parametrize("answer", [RuntimeError("it was killed"), None, b"\x90", b""])
    async def test_a_coordinator_that_fails_is_tried_again_and_told_what_it_missed(
        self, desk: Desk, answer: Exception | bytes | None
    ) -> None:
        desk.coordinator.answers = [answer, answer, SyncAnswer(EPOCH, True, plan(4)), SyncAnswer(EPOCH, False, None)]
        desk.talk.began(WHO, 10)
        desk.talk.ended("v", "final")
        await desk.until(lambda: desk.scheduler.plans)
        assert desk.talk.connected
        assert desk.talk.counts["reports_lost"] == 2
        heard = desk.coordinator.reports[2]
        assert heard.ended == {"v": "final"}
        assert [one.workflow for one in heard.seen] == ["w"]
        assert heard.number > 3  # so that whoever heard the first two knows that their answers were not

    async def test_a_scheduler_that_is_silent_is_told_anew(self, desk: Desk) -> None:
        desk.talk.began(WHO, 10)
        desk.scheduler.silent = True
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, plan(4)), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: any(report.seen for report in desk.coordinator.reports))
        assert desk.talk.counts["plans_unanswered"] == 1

    async def test_a_refusal_goes_up(self, desk: Desk) -> None:
        desk.scheduler.refuses = "not newer"
        desk.coordinator.answers = [SyncAnswer(EPOCH, False, plan(4)), SyncAnswer(EPOCH, False, None)]
        await desk.until(lambda: any(report.cache for report in desk.coordinator.reports))
        assert desk.talk.counts["plans_refused"] == 1
        assert desk.coordinator.reports[-1].applied_plan == 0
