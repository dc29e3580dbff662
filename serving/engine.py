"""EngineReplica: owns one SGLang engine, its health and its shutdown. The Serve deployment around `OpenAIApi`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psutil
from ray import serve

from cache_actor.messages import Beat, CallsStarted, CallStarted, EnginePlan, encode
from serving.call_log import CallLog
from serving.calls import EngineCall, EngineQuery, Reply, Usage
from serving.config import AppConfig
from serving.coordination import MIDDLE_PRIORITY, Coordination
from serving.demand import EngineDemand
from serving.engine_workflows import EngineWorkflows
from serving.errors import ApiError, engine_down
from serving.health import EngineHealth, Load
from serving.learned import LearnedFile
from serving.logs import log_through_serve
from serving.parts import Parts
from serving.plan_sender import PlanSender
from serving.processes import end_processes
from serving.run_directory import RunDirectory
from serving.sglang_plugin.channel import EventReceiver, new_address
from serving.storage import keep_swept, storage_root

logger = logging.getLogger("forecache")

_MONITOR_PERIOD_S = 0.5
_LAST_WORDS_S = 0.5
_IDLE_PERIOD_S = 1.0
_RECENT_CALLS = 256
_FIGURES_LIMIT_S = 1.0
# How long a new engine stays without calls for what the coordinator has it warm up, in seconds.
_WELCOME_LIMIT_S = 20.0


class EngineReplica:
    """One SGLang engine: tokenizer in this actor's process, scheduler and detokenizer in children of it.

    When the engine dies or gets stuck, the calls in flight are answered with a retryable 503 at once and the actor
    exits, so that Ray Serve starts another and no router sends more here.
    """

    def __init__(self, config: AppConfig, coordinator: Any = None) -> None:
        log_through_serve()
        self._config = config
        self._coordinator = coordinator
        self._loop = asyncio.get_running_loop()
        self._engine_id: str = serve.get_replica_context().replica_id.unique_id
        self._calls: dict[str, Parts] = {}
        self._recent: OrderedDict[str, CallStarted] = OrderedDict()
        self._released = threading.Event()
        self._engine: Any = None
        self._run_directory = RunDirectory.create()
        try:
            self._start()
        except BaseException:
            self._release()
            raise

    def _start(self) -> None:
        from serving.sglang_engine import openai_api, start_engine

        started = time.monotonic()
        channel = new_address()
        self._events = EventReceiver(channel)
        self._plans = PlanSender(new_address())
        self._engine = start_engine(self._config, self._engine_id, channel, self._plans.address, self._run_directory)
        self._api = openai_api(self._engine, self._config, self._engine_id)
        self._health = EngineHealth(self._config.health, time.monotonic())
        self._demand = EngineDemand(self._config.coordinator.discount, self._config.cache.max_workflows)
        self._workflows = EngineWorkflows(self._config.identity.idle_timeout_s, self._config.cache.max_workflows)
        works = [self._read_events(), self._monitor(), self._keep_learned(), self._end_idle()]
        if (root := storage_root(self._config)) is not None:
            works.append(keep_swept(root, int(self._config.cache.storage_gb * 1e9)))
        self._draining = False
        self._coordination = None
        if self._coordinator is not None:
            log = CallLog(self._engine_id, time.time_ns() // 1_000_000, self._config.cache.max_workflows)
            self._coordination = Coordination(
                self._config.coordinator,
                self._coordinator,
                log,
                self._plans,
                self._load,
                self._warm_up,
                self._on_plan,
            )
            works.append(self._coordination.run())
        self._by_priority = bool(self._config.engine.get("enable_priority_scheduling"))
        self._tasks = [self._loop.create_task(work) for work in works]
        processes = multiprocessing.active_children()
        threading.Thread(target=self._watch, args=(processes,), name="forecache-watch", daemon=True).start()
        logger.info("forecache engine %s: ready after %.1f s", self._engine_id, time.monotonic() - started)

    async def call(self, call: EngineCall) -> AsyncIterator[Reply | bytes]:
        """Answers one call. A consumer that goes away (cancellation) aborts it in the engine."""
        parts = Parts()
        self._calls[call.rid] = parts
        if self._health.dead:
            parts.fail(self._down(self._health.dead), self._api.error_reply)
        pump = self._loop.create_task(self._pump(call, parts))
        try:
            async for part in parts:
                yield part
        finally:
            del self._calls[call.rid]
            pump.cancel()

    async def status(self, query: EngineQuery) -> dict[str, Any]:
        """What this engine is doing now."""
        return {
            "id": self._engine_id,
            "model": self._config.model.served_name,
            "healthy": self._health.problem(time.monotonic()) is None,
            "calls": len(self._calls),
            "draining": self._draining,
            **self._health.snapshot(),
            "pids": [process.pid for process in multiprocessing.active_children()],
            "cache": await self._figures(),
            "coordinator": None
            if self._coordination is None
            else {"connected": self._coordination.connected, **self._coordination.counts},
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray Serve carries to `serving.autoscaling`."""
        asks = self._config.cache.backend == "forecache" and not self._released.is_set()
        figures = await self._figures() if asks else None
        pools = figures and figures.get("pools")
        held = 0.0 if self._coordination is None else self._coordination.held
        return self._demand.stats(self._health.load().waiting, held, pools, time.monotonic()).told()

    def _load(self) -> Load:
        load = self._health.load()
        return load._replace(pending_tokens=self._demand.pending_tokens(load.waiting), draining=self._draining)

    async def _figures(self) -> dict[str, Any] | None:
        """What the cache says of itself; None when the scheduler is too busy to answer."""
        try:
            async with asyncio.timeout(_FIGURES_LIMIT_S):
                return await self._plans.ask("figures")
        except TimeoutError:
            return None

    async def recent_calls(self, query: EngineQuery) -> list[CallStarted]:
        """The last calls that reached the scheduler, oldest first, as the scheduler saw them."""
        return list(self._recent.values())

    async def sync_plan(self, query: EngineQuery, data: bytes) -> bytes:
        """Applies an `EnginePlan` in the engine's scheduler; the `EngineReport` that comes back.

        Raises:
            MessageError: bytes that are no plan.
            TimeoutError: the scheduler has not answered.
        """
        return encode(await self._plans.apply(data))

    async def end_workflows(self, query: EngineQuery, workflows: dict[str, str]) -> None:
        """These workflows are over (`final`, `deleted`), as their clients have said."""
        for workflow in workflows:
            self._workflows.end(workflow, time.monotonic())
        self._end(workflows)

    def _end(self, workflows: dict[str, str]) -> None:
        """What only these workflows used goes first from now on."""
        self._plans.end(list(workflows))
        for workflow in workflows:
            self._demand.end(workflow)
        if self._coordination is not None:
            for workflow, how in workflows.items():
                self._coordination.ended(workflow, how)

    async def drain(self, query: EngineQuery, draining: bool) -> dict[str, Any]:
        """Whether the engine is to be left by its workflows from now on, one by one, and to get no new ones."""
        self._check_asked(query)
        self._draining = draining
        return {"id": self._engine_id, "draining": draining}

    async def ask(self, query: EngineQuery, what: str) -> dict[str, Any]:
        """What the engine's cache says to `figures`, `dump` or `check`."""
        self._check_asked(query)
        return await self._plans.ask(what)

    def _check_asked(self, query: EngineQuery) -> None:
        """Serve passes what was for an engine that is gone on to another."""
        if query.engine != self._engine_id:
            raise LookupError(f"engine {query.engine!r} is gone; this is {self._engine_id!r}")

    async def flush(self, query: EngineQuery) -> bool:
        """Empties the cache, which only an idle engine can; whether it did. For benchmarks."""
        emptied = bool((await self._engine.tokenizer_manager.flush_cache()).success)
        if emptied and self._coordination is not None:
            self._coordination.emptied()
        return emptied

    async def close_sessions(self, query: EngineQuery, sessions: list[str]) -> None:
        """Ends sessions of SGLang's own `enable_session_radix_cache`, with which benchmarks compare."""
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        for session in sessions:
            await self._engine.tokenizer_manager.close_session(CloseSessionReqInput(session_id=session))

    async def check_health(self) -> None:
        if self._coordination is not None:  # Serve's first question comes before any call
            await self._coordination.welcomed(_WELCOME_LIMIT_S)
        if problem := self._health.problem(time.monotonic()):
            raise RuntimeError(problem)

    async def _pump(self, call: EngineCall, parts: Parts) -> None:
        usage, coordination, identity = Usage(), self._coordination, call.identity
        ids: Sequence[int] = ()
        self._workflows.began(identity, time.monotonic())

        def begun(prompt: Sequence[int]) -> None:
            nonlocal ids
            ids = prompt
            self._demand.began(call.rid, identity.workflow, len(prompt), time.monotonic())
            if coordination is not None:
                coordination.began(identity, len(prompt))

        priority = MIDDLE_PRIORITY if coordination is None else coordination.priority(identity.workflow)
        try:
            async with contextlib.aclosing(
                self._api.answer(call, usage, begun, priority if self._by_priority else None)
            ) as answer:
                async for part in answer:
                    parts.put(part)
        except Exception:
            logger.exception("forecache engine %s: call %s failed", self._engine_id, call.rid)
            parts.fail(ApiError(500, "the engine failed to answer; its log has the reason"), self._api.error_reply)
        finally:
            parts.end()
            self._demand.over(call.rid, time.monotonic())
            self._workflows.over(identity, time.monotonic())
            if usage.began and coordination is not None:
                coordination.over(identity, usage, ids)

    async def _warm_up(self, ids: list[int]) -> bool:
        """Computes an anchor, if nobody waits for the engine."""
        if self._health.load().waiting:
            return False
        await self._api.warm_up(ids, f"warm-up-{secrets.token_hex(8)}")
        return True

    def _on_plan(self, plan: EnginePlan) -> None:
        self._demand.expect(plan, time.monotonic())
        for workflow in plan.ends:  # elsewhere, or it lives elsewhere now
            self._workflows.end(workflow, time.monotonic())

    async def _read_events(self) -> None:
        async for message in self._events.messages():
            if isinstance(message, Beat):
                self._health.on_beat(message, message.at)
            elif isinstance(message, CallsStarted):
                self._recent |= {call.rid: call for call in message.calls}
                while len(self._recent) > _RECENT_CALLS:
                    self._recent.popitem(last=False)
            else:
                self._plans.on_answer(message)

    async def _monitor(self) -> None:
        while True:
            await asyncio.sleep(_MONITOR_PERIOD_S)
            if problem := self._health.problem(time.monotonic()):
                await self._die(problem)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_PERIOD_S)
            if idle := self._workflows.take_idle(time.monotonic()):
                with contextlib.suppress(TimeoutError):  # of a scheduler that is stuck: `_monitor` sees to that
                    self._end(dict.fromkeys(idle, "idle"))

    async def _keep_learned(self) -> None:
        """Keeps what the cache learns for the engines to come. A restart loses a period of it."""
        file = LearnedFile(self._config.cache.learned_dir, self._config.model.served_name)
        while True:
            await asyncio.sleep(self._config.cache.learned_period_s)
            try:
                learned = await self._plans.ask("learned")
            except TimeoutError:  # a long step; the next time will do
                continue
            if "tiers" in learned:
                await asyncio.to_thread(file.save, learned)

    def _watch(self, processes: list[Any]) -> None:
        """Waits, in a thread of its own, for the first of the engine's processes to end."""
        by_sentinel = {process.sentinel: process for process in processes}
        names = {process.pid: _title(process.pid) for process in processes}
        ended = by_sentinel[multiprocessing.connection.wait(list(by_sentinel))[0]]
        if not self._released.is_set():
            ended.join(timeout=1)
            reason = f"its {names[ended.pid]} process (pid {ended.pid}) ended with exit code {ended.exitcode}"
            asyncio.run_coroutine_threadsafe(self._die(reason), self._loop)

    async def _die(self, reason: str) -> None:
        if self._health.dead:
            return
        self._health.on_process_exit(reason)
        logger.error("forecache engine %s: %s; failing %d calls", self._engine_id, reason, len(self._calls))
        for parts in list(self._calls.values()):
            parts.fail(self._down(reason), self._api.error_reply)
        await asyncio.sleep(_LAST_WORDS_S)
        await asyncio.to_thread(self._release)
        os._exit(1)

    def _down(self, reason: str) -> ApiError:
        return engine_down(reason, self._config.limits.retry_after_s)

    def _release(self) -> None:
        """Ends every process of the engine and removes its files; may be called in any state, and twice."""
        self._released.set()
        end_processes()
        if self._engine is not None:
            self._engine.shutdown()
            self._plans.close()
        self._run_directory.remove()

    def __del__(self) -> None:
        """Ray Serve calls this when the replica stops, before it kills the actor."""
        self._release()


def _title(pid: int) -> str:
    """What SGLang calls one of its processes ("scheduler", "detokenizer")."""
    try:
        title: str = psutil.Process(pid).cmdline()[0]
        return title.removeprefix("sglang::")
    except (psutil.Error, IndexError):
        return "engine"
