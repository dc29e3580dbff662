"""Stands in for the coordinator: sends what a source of forecasts says of the calls, beside them and never before."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.forecasts import Source, Word
from serving.benchmark.workloads import Workflow

COALESCE_S = 0.005

Send = Callable[[str, EnginePlan], Awaitable[EngineReport]]


class Planner:
    """Hears of each call's start and end, and keeps the engines told; a context manager.

    Args:
        source: what is known; None: nothing is ever sent.
        desk: gathers the words.
        engines: until a workflow's engine is known, all of them are told.
        send: brings a plan to an engine.

    `counts`: plans that were sent, refused (with a reason in `errors`) or failed.
    """

    def __init__(self, source: Source | None, desk: PlanDesk, engines: Sequence[str], send: Send) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._source = source
        self._desk = desk
        self._engines = list(engines)
        self._send = send
        self._lives_on: dict[str, str] = {}
        self._words: dict[str, Word] = {}
        self._wake = {engine: asyncio.Event() for engine in engines}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Planner:
        if self._source is not None:
            self._tasks = [asyncio.create_task(self._deliver(engine)) for engine in self._engines]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def started(self, name: str, workflow: Workflow, index: int) -> None:
        """Call `index` starts; `name` is what the engines know the workflow by."""
        if self._source is not None and (word := self._source.started(workflow, index, time.monotonic())):
            self._say(name, word)

    def on_engine(self, name: str, engine: str) -> None:
        """A reply has said where the workflow lives."""
        if engine in self._wake:
            self._lives_on[name] = engine

    def ended(self, name: str, workflow: Workflow, index: int) -> None:
        if self._source is None:
            return
        if word := self._source.ended(workflow, index, time.monotonic()):
            self._say(name, word)
        elif index + 1 < len(workflow.calls) and (last := self._words.get(name)):
            for engine in self._homes(name):
                self._desk.order(engine, name, last)
                self._wake[engine].set()

    def over(self, name: str, workflow: Workflow) -> None:
        if self._source is not None:
            self._source.over(workflow)
            self._desk.forget(name)
            self._words.pop(name, None)
            self._lives_on.pop(name, None)

    def _say(self, name: str, word: Word) -> None:
        self._words[name] = word
        for engine in self._homes(name):
            self._desk.say(engine, name, word)
            self._wake[engine].set()

    def _homes(self, name: str) -> list[str]:
        home = self._lives_on.get(name)
        return self._engines if home is None else [home]

    async def _deliver(self, engine: str) -> None:
        wake = self._wake[engine]
        while True:
            await wake.wait()
            await asyncio.sleep(COALESCE_S)
            wake.clear()
            for plan in self._desk.take(engine):
                await self._try(engine, plan)

    async def _try(self, engine: str, plan: EnginePlan) -> None:
        try:
            report = await self._send(engine, plan)
        except Exception as error:  # whatever it is, the calls go on without this plan
            self.counts["failed"] += 1
            self.errors.append(f"plan {plan.plan}: {type(error).__name__}: {error}")
            return
        self.counts["sent" if report.accepted else "refused"] += 1
        if not report.accepted:
            self.errors.append(f"plan {plan.plan}: {report.reason}")
