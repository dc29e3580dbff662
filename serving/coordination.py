"""The replica's talk with the coordinator: reports up, plans down. Calls never wait for any of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from cache_actor.codec import MessageError
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import (
    MAX_MESSAGE_BYTES,
    Anchor,
    EnginePlan,
    RequestIdentity,
    SyncAnswer,
    decode,
    encode,
)
from serving.call_log import CallLog
from serving.calls import Usage
from serving.health import Load
from serving.link import Link
from serving.plan_sender import PlanSender

logger = logging.getLogger("forecache")

# An answer that takes longer is not waited for, in seconds.
ANSWER_LIMIT_S = 3.0
# A coordinator that has not answered is asked again after so long, in seconds.
RETRY_S = 1.0
# Plans that the scheduler has not answered, at once.
IN_FLIGHT = 4
WARM_UP_LIMIT_S = 30.0
MAX_PRIORITIES = 10_000
# What a call gets that nobody has said anything about: the middle of what `call-order` gives.
MIDDLE_PRIORITY = 50


class Coordination:
    """One engine's end of it.

    Args:
        handle: of the coordinator's deployment.
        log: what to tell.
        plans: the way to the engine's scheduler.
        load: of the engine, now.
        warm: has the engine compute token ids that nobody has asked for; whether it did.
        on_plan: is told each plan that comes.

    Attributes:
        counts: reports and plans by what became of them.
        held: workflows that wait for a place here, as last heard.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        handle: Any,
        log: CallLog,
        plans: PlanSender,
        load: Callable[[], Load],
        warm: Callable[[list[int]], Awaitable[bool]],
        on_plan: Callable[[EnginePlan], object] = lambda plan: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.connected = False
        self.held = 0.0
        self._config = config
        self._link = Link(handle.address.remote, MAX_MESSAGE_BYTES)
        self._log = log
        self._plans = plans
        self._load = load
        self._warm = warm
        self._on_plan = on_plan
        self._met = asyncio.Event()
        self._welcomed = False
        self._news = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._applying: set[asyncio.Task[None]] = set()
        self._priorities: OrderedDict[str, int] = OrderedDict()

    def began(self, identity: RequestIdentity, prompt_tokens: int) -> None:
        self._log.began(identity, time.time(), prompt_tokens)
        self._news.set()

    def over(self, identity: RequestIdentity, usage: Usage, prompt: Sequence[int]) -> None:
        """Told with what comes next, or after a while: it changes little of what an engine should do now."""
        self._log.over(identity, time.time(), usage, prompt)
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(self._config.over_s, self._news.set)

    def ended(self, workflow: str, how: str) -> None:
        self._log.end(workflow, how)
        self._priorities.pop(workflow, None)
        self._news.set()

    def emptied(self) -> None:
        """The engine's cache was emptied."""
        self._log.emptied()
        self._news.set()

    def priority(self, workflow: str) -> int:
        """Of a workflow's next call, as last planned."""
        return self._priorities.get(workflow, MIDDLE_PRIORITY)

    async def welcomed(self, limit_s: float) -> None:
        """Returns when the coordinator was asked for the first time and what it ordered then is done, its warm-ups
        above all, or after so long, in seconds. From then on at once."""
        if self._welcomed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._met.wait()
                if self._applying:
                    await asyncio.wait(self._applying)
        self._welcomed = True

    async def run(self) -> None:
        """For ever. Whatever happens to the coordinator, it is tried again."""
        while True:
            try:
                if not self._log.is_behind and self._met.is_set():
                    await self._wait_for_news()
                if len(self._applying) >= IN_FLIGHT:
                    await asyncio.wait(self._applying, return_when=asyncio.FIRST_COMPLETED)
                if await self._sync():
                    continue
            except Exception:  # an engine that serves must not stop talking for good
                logger.exception("forecache: a report to the coordinator failed")
            finally:
                self._met.set()
            await asyncio.sleep(RETRY_S)

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self._config.heartbeat_s):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(self._config.coalesce_s, self._next - time.monotonic()))

    async def _sync(self) -> bool:
        """One report and its answer; False if there was none."""
        self._news.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._next = time.monotonic() + self._config.period_s
        report = self._log.report(self._load())
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer = decode(await self._link.ask(encode(report)))
            if not isinstance(answer, SyncAnswer):
                raise MessageError(f"a SyncAnswer was expected, not {type(answer).__name__}")
        except Exception as error:  # the coordinator is not there, or not well: the engine goes on by itself
            self._log.lost(report)
            self.counts["reports_lost"] += 1
            if self.connected:
                logger.warning("forecache: the coordinator does not answer (%s); going on without", _reason(error))
            self.connected = False
            self.held = 0.0
            return False
        self.counts["reports"] += 1
        self.connected = True
        self.held = answer.held
        if answer.tell_all:
            self._log.tell_all()
        if answer.plan is not None and answer.epoch == self._log.epoch:
            self._take(answer.plan)
        return True

    def _take(self, plan: EnginePlan) -> None:
        for workflow, priority in (plan.priorities or {}).items():
            self._priorities[workflow] = priority
            self._priorities.move_to_end(workflow)
        while len(self._priorities) > MAX_PRIORITIES:
            self._priorities.popitem(last=False)
        if plan.warm_ups:
            self._start(self._warm_up(plan.warm_ups))
        for workflow in plan.ends:
            self._log.left(workflow)
        self._on_plan(plan)
        if plan.ends or plan.tables or plan.prefetches or plan.renew or plan.policy or plan.prefetch:
            self._start(self._apply(plan))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)

    async def _warm_up(self, anchors: Sequence[Anchor]) -> None:
        """One after the other: an anchor that waits would keep the next from being computed."""
        for anchor in anchors:
            done = False
            try:
                async with asyncio.timeout(WARM_UP_LIMIT_S):
                    done = await self._warm(np.frombuffer(anchor.ids, "<i4").tolist())
            except Exception as error:  # an extra, and never worth more than a line
                logger.warning("forecache: the anchor of %r was not warmed up (%s)", anchor.agent, _reason(error))
            self._log.warmed(anchor.agent, done)

    async def _apply(self, plan: EnginePlan) -> None:
        try:
            report = await self._plans.carry_out(plan)
        except (TimeoutError, MessageError) as error:
            # It may be applied yet, or never: what it said is said again.
            self.counts["plans_unanswered"] += 1
            logger.warning("forecache: plan %d was not answered (%s)", plan.plan, _reason(error))
            self._log.tell_all()
            return
        self.counts["plans" if report.accepted else "plans_refused"] += 1
        if report.receipts or report.evictions or not report.accepted:
            self._news.set()
        self._log.answered(report)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
