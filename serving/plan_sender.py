"""The replica's end of the way down: plans and questions to its engine's scheduler, and the answers to them."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import zmq

from cache_actor.codec import MessageError
from cache_actor.messages import (
    Ask,
    EnginePlan,
    EngineReport,
    Message,
    Told,
    WorkflowsEnded,
    decode,
    encode,
)

ANSWER_LIMIT_S = 10.0
HIGH_WATER_MARK = 10_000


class PlanSender:
    """Sends to the scheduler that listens at `address`; waits for answers, never for room.

    Whatever is sent raises TimeoutError when the scheduler has taken nothing for HIGH_WATER_MARK messages, or has not
    answered within ANSWER_LIMIT_S.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.connect(address)
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[type, int], asyncio.Future[Any]] = {}

    async def apply(self, data: bytes) -> EngineReport:
        """Sends a plan, after having decoded it, and waits for its report.

        Raises:
            MessageError: bytes that are no plan, or a number whose report is still awaited.
        """
        plan = decode(data)
        if not isinstance(plan, EnginePlan):
            raise MessageError(f"a plan was expected, not {type(plan).__name__}")
        return await self.carry_out(plan)

    async def carry_out(self, plan: EnginePlan) -> EngineReport:
        """Sends a plan and waits for its report. Raises as `apply`."""
        report: EngineReport = await self._answer_to(plan, EngineReport, plan.plan)
        return report

    async def ask(self, what: str) -> dict[str, Any]:
        """What the cache says to a question (see `sglang_plugin.dump.answer`)."""
        number = next(self._numbers)
        told: Told = await self._answer_to(Ask(number, what), Told, number)
        answer: dict[str, Any] = json.loads(told.text)
        return answer

    def end(self, workflows: list[str]) -> None:
        """Tells of ends; nothing comes back."""
        self._send(WorkflowsEnded(workflows))

    def on_answer(self, message: Message) -> None:
        """What came up from the scheduler; an answer that nobody waits for any more is dropped."""
        number = message.plan if isinstance(message, EngineReport) else getattr(message, "number", 0)
        future = self._waiting.pop((type(message), number), None)
        if future is not None and not future.done():
            future.set_result(message)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    async def _answer_to(self, message: Message, kind: type, number: int) -> Any:
        if (kind, number) in self._waiting:
            raise MessageError(f"number {number} is being answered already")
        future = self._waiting[kind, number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await future
        finally:
            self._waiting.pop((kind, number), None)

    def _send(self, message: Message) -> None:
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise TimeoutError(f"the scheduler has left {HIGH_WATER_MARK} messages unread") from error
