"""What the coordinator costs: a real one under Ray Serve, with a real predictor, and made-up engines that report."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import MAX_MESSAGE_BYTES, EngineReport, RequestIdentity, SyncAnswer, Work, decode, encode
from serving.benchmark.budgets import Budget, Figures
from serving.call_log import CallLog
from serving.calls import Usage
from serving.health import Load
from serving.link import Link

BUDGETS = (
    Budget("sync_p50_ms", "ms, an engine's report and its answer, median", 50),
    Budget("sync_p99_ms", "ms, 99th percentile", 50),
    Budget("rss_mb", "MB resident, the coordinator's process", 1000),
    Budget("rss_growth_ratio", "resident at the end, of what it was after a fifth of the time", 1.1),
)
PERIOD_S = 0.2
EVENTS = 20
WORKFLOWS_PER_ENGINE = 200
AGENTS = 24
MEAN_CALLS = 25

Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """So many engines report every PERIOD_S with EVENTS events, for so long."""

    engines: int = 64
    seconds: float = 60.0


class MadeUpEngine:
    """An engine whose workflows walk over a call graph of AGENTS agents: its replica's own log, without the replica."""

    def __init__(self, name: str, rng: random.Random, followers: list[list[int]]) -> None:
        self._rng = rng
        self._followers = followers
        self._log = CallLog(name, time.time_ns() // 1_000_000, WORKFLOWS_PER_ENGINE)
        self._name = name
        self._number = 0
        self._living: list[tuple[str, int]] = []
        self._pressure = itertools.count(1)
        self._computed = 0

    def report(self) -> bytes:
        """The next report: calls begin and end, and now and then a workflow ends and another comes."""
        for _ in range(EVENTS // 2):
            self._call()
        self._computed += 1000
        work = Work(time.monotonic(), time.monotonic(), time.monotonic(), self._computed, 0, 0, 0, 100_000, 400_000)
        return encode(self._log.report(Load(8, 0, next(self._pressure), work)))

    def hear(self, answer: SyncAnswer) -> None:
        """Does what a replica does with the answer; the scheduler takes every plan."""
        if answer.tell_all:
            self._log.tell_all()
        plan = answer.plan
        if plan is not None:
            residency = {workflow: [3000, 500] for workflow in plan.tables}
            self._log.answered(EngineReport(plan.plan, True, "", [], {}, {}, residency, [], plan.plan))

    def _call(self) -> None:
        rng = self._rng
        if len(self._living) < WORKFLOWS_PER_ENGINE:
            self._number += 1
            self._living.append((f"{self._name}-{self._number}", rng.randrange(AGENTS)))
            place = len(self._living) - 1
        else:
            place = rng.randrange(len(self._living))
        workflow, agent = self._living[place]
        identity = RequestIdentity(workflow, f"agent-{agent}")
        now = time.time()
        self._log.began(identity, now, 0)
        self._log.over(identity, now, Usage(True, 2000, 100, 1500, 200))
        if len(self._living) == WORKFLOWS_PER_ENGINE and rng.random() < 1 / MEAN_CALLS:
            self._log.end(workflow, "final")
            del self._living[place]
        else:
            self._living[place] = workflow, rng.choices(self._followers[agent], (6, 3, 1))[0]


def measure(run: Run, progress: Progress) -> Figures:
    """All figures, in the order of BUDGETS. Starts a Ray runtime of its own, and ends it."""
    import ray
    from ray import serve

    from serving.app import coordinator_of
    from serving.config import AppConfig, PredictorConfig

    progress(0.0, "starting Ray")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        config = AppConfig(coordinator=CoordinatorConfig(), predictor=PredictorConfig(traces_dir=""))
        application = coordinator_of(config)
        assert application is not None
        handle = serve.run(application, name="coordinator", route_prefix=None, logging_config={"log_level": "ERROR"})
        return asyncio.run(_drive(handle, run, progress))
    finally:
        serve.shutdown()
        ray.shutdown()


async def _drive(handle: object, run: Run, progress: Progress) -> Figures:
    rng = random.Random(1)
    followers = [[rng.randrange(AGENTS) for _ in range(3)] for _ in range(AGENTS)]
    engines = [MadeUpEngine(f"engine-{number}", random.Random(number), followers) for number in range(run.engines)]
    status = await handle.status.remote()  # type: ignore[attr-defined]
    coordinator, predictor = psutil.Process(status["pid"]), psutil.Process(status["predictor"]["pid"])
    latencies: list[float] = []
    sizes: list[float] = []
    begin = time.monotonic()
    # Each engine makes its workflows known first; that is a restart, and not what is measured.
    warm_s = WORKFLOWS_PER_ENGINE / (EVENTS / 2) * PERIOD_S
    end = begin + warm_s + run.seconds

    async def report(engine: MadeUpEngine, offset: float) -> None:
        link = Link(handle.address.remote, MAX_MESSAGE_BYTES)  # type: ignore[attr-defined]
        due = begin + offset
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            answer = decode(await link.ask(engine.report()))
            assert isinstance(answer, SyncAnswer)
            engine.hear(answer)
            if sent >= begin + warm_s:
                latencies.append(time.monotonic() - sent)
            due = max(due + PERIOD_S, time.monotonic())
        link.close()

    async def watch() -> None:
        while True:
            now = time.monotonic()
            sizes.append(coordinator.memory_info().rss / 1e6)
            progress(min(1.0, (now - begin) / (end - begin)), f"{len(latencies)} reports answered")
            await asyncio.sleep(1)

    async def cores() -> dict[str, float]:
        await asyncio.sleep(warm_s)
        before = _processor_s(coordinator, predictor)
        await asyncio.sleep(run.seconds)
        after = _processor_s(coordinator, predictor)
        return {name: (after[name] - seconds) / run.seconds for name, seconds in before.items()}

    watching = asyncio.create_task(watch())
    busy = asyncio.create_task(cores())
    try:
        await asyncio.gather(*[report(engine, rng.uniform(0, PERIOD_S)) for engine in engines])
    finally:
        watching.cancel()
    latencies.sort()
    after_a_fifth = sizes[int(len(sizes) * (warm_s + 0.2 * run.seconds) / (warm_s + run.seconds))]
    return {
        "sync_p50_ms": 1e3 * statistics.median(latencies),
        "sync_p99_ms": 1e3 * latencies[int(0.99 * len(latencies))],
        "rss_mb": max(sizes),
        "rss_growth_ratio": statistics.median(sizes[-5:]) / after_a_fifth,
        "reports_per_s": len(latencies) / run.seconds,
        **await busy,
    }


def _processor_s(coordinator: psutil.Process, predictor: psutil.Process) -> dict[str, float]:
    """Processor time so far. This process is the made-up engines; `ray` all that it has started but the two."""
    ours = psutil.Process()
    seconds = {process.pid: _seconds(process) for process in [ours, *ours.children(recursive=True)]}
    return {
        "coordinator_cores": seconds.pop(coordinator.pid),
        "predictor_cores": seconds.pop(predictor.pid),
        "engines_cores": seconds.pop(ours.pid),
        "ray_cores": sum(seconds.values()),
    }


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
