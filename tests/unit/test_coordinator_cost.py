"""The load that the coordinator is measured under is one that a coordinator takes, and what the figures are made of."""

from __future__ import annotations

import asyncio
import random

from cache_actor.coordinator import CacheCoordinator
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import SyncAnswer, SyncReport, decode
from serving.benchmark.coordinator_cost import AGENTS, EVENTS, WORKFLOWS_PER_ENGINE, MadeUpEngine

REPORTS = 60


async def test_made_up_engines_report_as_real_ones_do() -> None:
    coordinator = CacheCoordinator(CoordinatorConfig())
    followers = [[(agent + 1) % AGENTS] * 3 for agent in range(AGENTS)]
    engines = [MadeUpEngine(f"e{number}", random.Random(number), followers) for number in range(3)]
    events = 0
    for _ in range(REPORTS):
        for engine in engines:
            data = engine.report()
            report = decode(data)
            assert isinstance(report, SyncReport)
            events += len(report.events)
            answer = decode(await coordinator.take(data))
            assert isinstance(answer, SyncAnswer)
            engine.hear(answer)
    status = await coordinator.status()
    assert events == 3 * REPORTS * EVENTS
    assert 0.8 * 3 * WORKFLOWS_PER_ENGINE < status["workflows"] <= 3 * WORKFLOWS_PER_ENGINE
    assert status["counts"]["ended_final"] > 0
    assert status["counts"].get("reports_missed", 0) == 0
    assert status["counts"]["calls_begun"] == 3 * REPORTS * EVENTS / 2
    for task in coordinator._tasks:
        task.cancel()
    await asyncio.gather(*coordinator._tasks, return_exceptions=True)
