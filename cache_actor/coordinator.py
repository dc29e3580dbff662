"""CacheCoordinator: the Serve deployment. A shell: messages in, pure code, messages out, and the clock."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from typing import Any

from ray.util import get_node_ip_address, metrics

from cache_actor.admission_messages import AdmissionReport
from cache_actor.cluster import Cluster
from cache_actor.codec import MessageError
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.engine_snapshots import snapshots_of
from cache_actor.forecast import compiled
from cache_actor.limits import answer_to
from cache_actor.messages import MAX_MESSAGE_BYTES, SyncAnswer, SyncReport, decode, encode
from cache_actor.metrics import CoordinatorMetrics
from cache_actor.planner import Planner, PlannerConfig
from cache_actor.runtime import Runtime
from cache_actor.snapshot_desk import SnapshotDesk
from cache_actor.snapshot_messages import SnapshotsAsked
from cache_actor.snapshots import EngineSnapshot
from cache_actor.status import engine_status, why
from cache_actor.work_rates import costs_of
from predictor_actor.base import Prefix
from predictor_actor.requests import MAX_BYTES, Request, decode_answer, encode_request
from serving.garbage import collect_seldom
from serving.link import Address, Link, LinkServer
from serving.logs import log_through_serve

logger = logging.getLogger("forecache")

# What one request to the predictor may hold; the rest waits for the next.
BATCH = 1024
EXPIRE_PERIOD_S = 1.0
# A predictor that does not answer is not asked again for so long, so that no plan waits for it.
PREDICTOR_PAUSE_S = 1.0


class CacheCoordinator:
    """Hears all engines, has every workflow that moved forecast, and answers each engine with a plan.

    Args:
        config: how.
        predictor: handle of the predictor's deployment; None: there is none, and plans say what lifecycles say.
        idle_timeout_s: a workflow of which no engine has spoken for twice as long is forgotten.
    """

    def __init__(self, config: CoordinatorConfig, predictor: Any = None, idle_timeout_s: float = 900.0) -> None:
        log_through_serve()
        self._config = config
        self._predictor = predictor
        self._to_predictor = None if predictor is None else Link(predictor.address.remote, MAX_BYTES)
        self._idle_s = 2 * idle_timeout_s
        self._started = time.time()
        self._cluster = Cluster(config.max_workflows)
        self._runtime = Runtime(config.make_policies())
        planner = PlannerConfig(config.plan_ttl_s, first_order=time.time_ns() // 1_000_000)
        self._planner = Planner(self._cluster, self._runtime, planner, config.mode)
        self._counts: Counter[str] = Counter()
        self._moved = asyncio.Event()
        self._forecast = asyncio.get_running_loop().create_future()
        self._predictor_rests_until = 0.0
        self._predictor_error = ""
        self._metrics = CoordinatorMetrics(metrics)
        self._snapshots = SnapshotDesk(self._look)
        self._link = LinkServer(self.take, get_node_ip_address(), MAX_MESSAGE_BYTES)
        works = self._have_forecast(), self._expire(), self._snapshots.run(), collect_seldom()
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def address(self) -> Address:
        """Where engines and ingresses bring what `take` answers."""
        return self._link.address

    async def take(self, data: bytes) -> bytes:
        """An engine's `SyncReport`, whose answer is a `SyncAnswer`; an ingress's `AdmissionReport`, answered by an
        `AdmissionAnswer`, or its `SnapshotsAsked`, answered by a `SnapshotDelta` when there is one.

        Raises:
            MessageError: bytes that are none of these.
        """
        said = decode(data)
        if isinstance(said, SyncReport):
            return await self._sync(said)
        if isinstance(said, AdmissionReport):
            now = time.time()
            self._cluster.hear_ingress(said, now)
            return encode(answer_to(self._cluster, said.ingress, now))
        if isinstance(said, SnapshotsAsked):
            return await self._snapshots.after(said.number)
        raise MessageError(f"nobody sends {type(said).__name__} to a coordinator")

    async def _sync(self, report: SyncReport) -> bytes:
        begin = time.monotonic()
        engine = self._cluster.hear(report, time.time())
        self._runtime.observe(report.events, self._cluster.take_gone(), engine)
        if self._cluster.has_moved:
            self._moved.set()
            await self._wait_for_forecast(begin)
        if self._cluster.engines.get(engine.id) is not engine:
            # Another report of it, or its silence, has overtaken this one: what it is told then is the newest.
            return encode(SyncAnswer(report.epoch, False, None))
        plan = self._planner.plan(engine, time.time())
        tell_all, engine.tell_all = engine.tell_all, False
        held = self._cluster.ingresses.waiting(engine.id, len(self._cluster.engines))
        answer = _bounded(SyncAnswer(report.epoch, tell_all, plan, held))
        self._metrics.synced(time.monotonic() - begin)
        return answer

    async def status(self) -> dict[str, Any]:
        """What is known, planned and expected now, for people and for `GET /v1/coordinator`."""
        now = time.time()
        cluster = self._cluster
        costs = costs_of({name: engine.rates for name, engine in cluster.engines.items()})
        return {
            "mode": self._planner.mode,
            "since": round(self._started, 3),
            "pid": os.getpid(),
            "workflows": len(cluster.workflows),
            "engines": [
                engine_status(engine, costs[name], cluster.ingresses, now) for name, engine in cluster.engines.items()
            ],
            "predictor": await self._predictor_status(),
            "accuracy": cluster.accuracy.figures(),
            "counts": dict(cluster.counts + self._planner.counts + self._counts),
            "ingresses": len(cluster.ingresses.known),
            "link": dict(self._link.counts),
            "runtime_policies": [policy.name for policy in self._runtime.policies],
        }

    async def workflow(self, workflow: str) -> dict[str, Any] | None:
        """What is expected of a workflow, and the log of what was decided about it; None for one that is not known."""
        state = self._cluster.known(workflow)
        return None if state is None else why(state, workflow in self._cluster.workflows)

    async def workflows(self, limit: int) -> list[dict[str, Any]]:
        """The latest living workflows with what is expected of them, the latest first."""
        names = list(self._cluster.workflows)[-limit:][::-1]
        return [why(self._cluster.workflows[name], True, decisions=False) for name in names]

    async def switch(self, mode: str) -> str:
        """Another mode from now on: `on`, `shadow`, `off`.

        Raises:
            ValueError: there is no such mode.
        """
        self._planner.switch(mode)
        logger.warning("forecache: the coordinator is switched to %s", mode)
        return mode

    async def check_health(self) -> None:
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"a task of the coordinator has ended: {task}")
        if not self._link.is_open:
            raise RuntimeError("the coordinator takes no reports any more")

    def _look(self, now: float) -> list[EngineSnapshot]:
        """What routers are told: nothing in a mode in which nothing is to be changed by what is known here."""
        return snapshots_of(self._cluster, now) if self._planner.mode == "on" else []

    async def _wait_for_forecast(self, begin: float) -> None:
        """Until what has moved is forecast, but no longer than the limit."""
        if self._predictor is None or time.monotonic() < self._predictor_rests_until:
            return
        left = self._config.forecast_wait_s - (time.monotonic() - begin)
        done, _ = await asyncio.wait({self._forecast}, timeout=max(0.0, left))
        if not done:
            self._counts["plans_without_forecast"] += 1

    async def _have_forecast(self) -> None:
        """One request to the predictor after the other; what moves meanwhile goes with the next."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            while self._cluster.has_moved:
                waiting, self._forecast = self._forecast, asyncio.get_running_loop().create_future()
                begun, asked, ended = self._cluster.take(BATCH)
                if self._to_predictor is not None:
                    await self._ask(self._to_predictor, Request(begun, ended, {}, asked))
                waiting.set_result(None)

    async def _ask(self, predictor: Link, request: Request) -> None:
        rest = self._predictor_rests_until - time.monotonic()
        if rest > 0:
            await asyncio.sleep(rest)
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self._config.forecast_limit_s):
                answer = decode_answer(await predictor.ask(encode_request(request)))
            lengths = [prefix.length for prefix in (*request.begun, *request.asked)]
            if len(answer.forecasts) != len(lengths):
                raise ValueError(f"{len(answer.forecasts)} forecasts for {len(lengths)} workflows")
        except Exception as error:  # whatever it is, plans go on without forecasts, and it is asked again later
            self._counts["forecasts_failed"] += 1
            self._predictor_error = f"{type(error).__name__}: {str(error)[:200]}"
            logger.warning("forecache: no forecasts (%s)", self._predictor_error)
            self._predictor_rests_until = time.monotonic() + PREDICTOR_PAUSE_S
            if not isinstance(error, ValueError):  # what cannot be asked or read would not be the next time
                self._cluster.ask_again((*request.begun, *request.asked))
            return
        self._predictor_error = ""
        self._metrics.forecast(time.monotonic() - begin, len(lengths))
        forecasts = compiled(answer.forecasts, lengths, self._config.discount, answer.made_at)
        now = time.time()
        prefixes: list[Prefix] = [*request.begun, *request.asked]
        for prefix, forecast in zip(prefixes, forecasts, strict=True):
            self._cluster.expect(prefix.workflow, forecast, now)

    async def _predictor_status(self) -> dict[str, Any] | None:
        if self._predictor is None:
            return None
        try:
            async with asyncio.timeout(self._config.forecast_limit_s):
                status: dict[str, Any] = await self._predictor.status.remote()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        return status | {"error": self._predictor_error} if self._predictor_error else status

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_S)
            self._cluster.expire(time.time(), self._idle_s)
            if self._cluster.has_moved:
                self._moved.set()
            self._metrics.show(self._cluster, self._planner.counts)


def _bounded(answer: SyncAnswer) -> bytes:
    """The answer as bytes; one that is too large goes without its plan, and the engine is asked to tell all again."""
    data = encode(answer)
    if len(data) <= MAX_MESSAGE_BYTES:
        return data
    logger.error("forecache: a plan of %d bytes is not sent", len(data))
    return encode(SyncAnswer(answer.epoch, True, None))
