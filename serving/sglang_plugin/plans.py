"""Plans down: from the replica's socket into the scheduler, at the same step on every tensor-parallel rank.

Rank 0 reads the socket where it reads SGLang's requests, and appends what came to them; SGLang broadcasts the list as
it always does, and every rank handles our messages in its order. The same way go the clock of the cache and the word to
prefetch, so that ranks never decide by clocks of their own. The scheduler never waits for a plan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import zmq

from cache_actor.messages import Ask, EnginePlan, EngineReport, Told, WorkflowsEnded, decode
from serving.sglang_plugin.dump import answer
from serving.sglang_plugin.guard import guarded

logger = logging.getLogger("forecache")

ADDRESS_VARIABLE = "FORECACHE_PLANS"
CLOCK_PERIOD_S = 0.25
MAX_PLANS_PER_STEP = 16
# A burst after a pause may load at most what the link moves in this time.
MAX_BURST_S = 1.0


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A plan as it came, on its way to every rank."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ClockInput:
    """What the time is, in seconds, for every rank."""

    now: float


@dataclass(frozen=True, slots=True)
class PrefetchInput:
    """Rank 0 sees an engine that only decodes or idles: prefetch so many tokens."""

    budget: int


def install(send: Any) -> None:
    """Hooks plans into the scheduler; `send` takes a report for the replica."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plans = Plans(address, send)
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    receiver = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
    HookRegistry.register(f"{scheduler}.init_request_dispatcher", plans.after_dispatcher, HookType.AFTER)
    HookRegistry.register(f"{receiver}._pull_raw_reqs", plans.after_pull, HookType.AFTER)


class Plans:
    """Both ends of it: what rank 0 appends to the requests, and what every rank does with it."""

    def __init__(self, address: str, send: Any) -> None:
        self._address = address
        self._report = send
        self._scheduler: Any = None
        self._socket: zmq.Socket[bytes] | None = None
        self._next_clock = 0.0
        self._last_prefetch = time.monotonic()

    @guarded
    def after_dispatcher(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        self._scheduler = scheduler
        scheduler._request_dispatcher._mapping |= {
            PlanInput: guarded(self.on_plan),
            ClockInput: guarded(self.on_clock),
            PrefetchInput: guarded(self.on_prefetch),
        }

    @guarded
    def after_pull(self, requests: list[Any] | None, *args: Any, **kwargs: Any) -> None:
        if requests is None or self._scheduler is None:
            return
        now = time.monotonic()
        work = len(requests)
        plans = 0
        with contextlib.suppress(zmq.Again):
            while plans < MAX_PLANS_PER_STEP:
                requests.append(PlanInput(self._plans().recv(zmq.NOBLOCK)))
                plans += 1
        if now >= self._next_clock:
            self._next_clock = now + CLOCK_PERIOD_S
            requests.append(ClockInput(now))
        cache = _cache_of(self._scheduler)
        if cache is None or not (cache.prefetcher.has_work or plans):
            return
        if work == 0 and _only_decodes(self._scheduler):
            seconds = min(now - self._last_prefetch, MAX_BURST_S)
            self._last_prefetch = now
            requests.append(PrefetchInput(int(seconds * cache.prefetcher.tokens_per_s)))

    def on_plan(self, message: PlanInput) -> None:
        cache = _cache_of(self._scheduler)
        said = decode(message.data)  # the replica lets through what it has decoded itself
        if isinstance(said, Ask):
            if _answers():
                self._report(Told(said.number, json.dumps(answer(cache, said.what))))
        elif cache is None:
            if isinstance(said, EnginePlan):
                self._answer(
                    EngineReport(said.plan, False, "this engine runs SGLang's own cache", [], {}, {}, {}, [], 0)
                )
        elif isinstance(said, WorkflowsEnded):
            for workflow in said.workflows:
                cache.end_workflow(workflow)
        elif isinstance(said, EnginePlan):
            try:
                report = cache.apply(said)
            except Exception as error:
                logger.exception("forecache: plan %d failed half-way", said.plan)
                report = cache.report(said.plan, f"failed half-way: {type(error).__name__}: {error}")
            self._answer(report)

    def on_clock(self, message: ClockInput) -> None:
        if (cache := _cache_of(self._scheduler)) is not None:
            cache.tick(message.now)

    def on_prefetch(self, message: PrefetchInput) -> None:
        if (cache := _cache_of(self._scheduler)) is not None:
            cache.prefetcher.step(message.budget)

    def _answer(self, report: EngineReport) -> None:
        if _answers():
            self._report(report)

    def _plans(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.PULL)
            self._socket.bind(self._address)
            sleeper = getattr(self._scheduler, "idle_sleeper", None)
            if sleeper is not None:  # an idle scheduler sleeps on SGLang's sockets; a plan wakes it, too
                sleeper.poller.register(self._socket, zmq.POLLIN)
        return self._socket


def _answers() -> bool:
    """All ranks do what is said, one speaks."""
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().tp_rank == 0)


def _cache_of(scheduler: Any) -> Any | None:
    from serving.sglang_plugin.cache import ForecacheCache

    cache = getattr(scheduler, "tree_cache", None)
    return cache if isinstance(cache, ForecacheCache) else None


def _only_decodes(scheduler: Any) -> bool:
    """No prefill is under way or waiting."""
    last = scheduler.last_batch
    return (
        not scheduler.waiting_queue
        and scheduler.chunked_req is None
        and (last is None or last.forward_mode.is_decode())
    )
