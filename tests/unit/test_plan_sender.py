"""The replica's end of the way down, against a plain socket where the scheduler would be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from cache_actor.codec import MessageError
from cache_actor.messages import (
    Ask,
    Beat,
    EnginePlan,
    EngineReport,
    Message,
    Told,
    WorkflowsEnded,
    decode,
    encode,
)
from serving import plan_sender
from serving.plan_sender import PlanSender
from serving.sglang_plugin.channel import new_address


class Wire:
    """A sender and the socket at its other end."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.PULL)
        self.sender = PlanSender(new_address())

    def listen(self) -> None:
        self.socket.bind(self.sender.address)

    async def received(self) -> bytes:
        data: bytes = await asyncio.wait_for(self.socket.recv(), 5)
        return data

    async def asked(self, what: str) -> tuple[asyncio.Task[dict[str, Any]], Ask]:
        """A question under way, and what came of it at the other end."""
        task = asyncio.create_task(self.sender.ask(what))
        message = decode(await self.received())
        assert isinstance(message, Ask)
        return task, message


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = Wire()
    wire.listen()
    yield wire
    wire.sender.close()
    wire.socket.close(linger=0)
    wire.context.term()


def plan(number: int) -> EnginePlan:
    return EnginePlan(number, 2.0, ["old"], {"w": {"a": 3}}, [])


def report(number: int, reason: str = "") -> EngineReport:
    return EngineReport(number, not reason, reason, [], {}, {}, {}, [], 0)


async def within(task: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(task, 5)


class TestPlans:
    async def test_its_bytes_arrive_as_they_were_and_the_report_comes_back(self, wire: Wire) -> None:
        data = encode(plan(1))
        task = asyncio.create_task(wire.sender.apply(data))
        assert await wire.received() == data
        wire.sender.on_answer(report(1))
        assert await within(task) == report(1)

    @pytest.mark.parametrize(
        "data", [b"", b"\xc1", encode(plan(1))[:-1], encode(plan(1)) + b"\x00"], ids=["empty", "no", "short", "long"]
    )
    async def test_malformed_bytes_are_refused_and_not_sent(self, wire: Wire, data: bytes) -> None:
        with pytest.raises(MessageError):
            await wire.sender.apply(data)
        await self.nothing_was_sent(wire)

    @pytest.mark.parametrize(
        "message",
        [Ask(1, "dump"), WorkflowsEnded(["w"]), Told(1, "{}"), report(1), Beat(0, 1, 2, 3, 4, 5, 6.0)],
        ids=lambda message: type(message).__name__,
    )
    async def test_another_kind_of_message_is_refused_and_not_sent(self, wire: Wire, message: Message) -> None:
        with pytest.raises(MessageError, match=f"not {type(message).__name__}"):
            await wire.sender.apply(encode(message))
        await self.nothing_was_sent(wire)

    async def nothing_was_sent(self, wire: Wire) -> None:
        """What is sent next is the first that arrives."""
        wire.sender.end(["marker"])
        assert decode(await wire.received()) == WorkflowsEnded(["marker"])

    async def test_reports_find_their_plans_in_any_order(self, wire: Wire) -> None:
        tasks = [asyncio.create_task(wire.sender.apply(encode(plan(number)))) for number in (1, 2)]
        assert [decode(await wire.received()) for _ in tasks] == [plan(1), plan(2)]
        wire.sender.on_answer(report(2, "two"))
        wire.sender.on_answer(report(1, "one"))
        assert [(await within(task)).reason for task in tasks] == ["one", "two"]

    async def test_a_number_that_is_under_way_is_refused_and_the_first_is_answered(self, wire: Wire) -> None:
        task = asyncio.create_task(wire.sender.apply(encode(plan(1))))
        await wire.received()
        with pytest.raises(MessageError, match="answered already"):
            await wire.sender.apply(encode(plan(1)))
        wire.sender.on_answer(report(1))
        assert (await within(task)).accepted


class TestQuestions:
    async def test_two_questions_do_not_mix(self, wire: Wire) -> None:
        first, first_ask = await wire.asked("report")
        second, second_ask = await wire.asked("dump")
        assert first_ask.number != second_ask.number
        assert (first_ask.what, second_ask.what) == ("report", "dump")
        wire.sender.on_answer(Told(second_ask.number, '{"said": "dump"}'))
        wire.sender.on_answer(Told(first_ask.number, '{"said": "report"}'))
        assert await within(first) == {"said": "report"}
        assert await within(second) == {"said": "dump"}

    async def test_a_report_does_not_answer_a_question_of_the_same_number(self, wire: Wire) -> None:
        task, ask = await wire.asked("dump")
        wire.sender.on_answer(report(ask.number))
        wire.sender.on_answer(Told(ask.number, '{"said": "dump"}'))
        assert await within(task) == {"said": "dump"}

    async def test_answers_that_nobody_waits_for_are_dropped(self, wire: Wire) -> None:
        task, ask = await wire.asked("dump")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for message in (Told(ask.number, "{}"), Told(999, "{}"), report(3), Beat(0, 1, 2, 3, 4, 5, 6.0)):
            wire.sender.on_answer(message)
        again, ask = await wire.asked("dump")
        wire.sender.on_answer(Told(ask.number, "{}"))
        wire.sender.on_answer(Told(ask.number, '{"said": "twice"}'))
        assert await within(again) == {}


class TestNoAnswer:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_sender, "ANSWER_LIMIT_S", 0.05)

    async def test_it_is_a_timeout_error_and_the_number_may_be_used_again(self, wire: Wire) -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await wire.sender.apply(encode(plan(1)))
        with pytest.raises(TimeoutError):
            await wire.sender.ask("dump")

    async def test_a_late_answer_is_not_taken_for_that_to_the_next_question(self, wire: Wire) -> None:
        with pytest.raises(TimeoutError):
            await wire.sender.ask("report")
        late = decode(await wire.received())
        assert isinstance(late, Ask)
        task, ask = await wire.asked("dump")
        wire.sender.on_answer(Told(late.number, '{"said": "report"}'))
        wire.sender.on_answer(Told(ask.number, '{"said": "dump"}'))
        assert await within(task) == {"said": "dump"}

    async def test_a_scheduler_that_takes_nothing_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_sender, "HIGH_WATER_MARK", 3)
        sender = PlanSender(new_address())
        for _ in range(3):
            sender.end(["w"])
        with pytest.raises(TimeoutError, match="3 messages unread"):
            sender.end(["w"])
        with pytest.raises(TimeoutError):
            await sender.ask("dump")
        sender.close()
