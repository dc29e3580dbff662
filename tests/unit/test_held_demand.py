"""Workflows that wait at the door count in the figures from which engines are scaled, each of them once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from coordinator_reports import MadeUpEngine
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission_messages import AdmissionReport
from cache_actor.coordinator import CacheCoordinator
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.ingresses import NOWHERE, Ingresses
from cache_actor.messages import RequestIdentity, SyncAnswer, decode, encode
from serving.admission import Admission
from serving.config import AdmissionConfig, ScalingConfig
from serving.demand import EngineDemand
from serving.scaling import Observation, decide

ENGINES = ("e0", "e1", "e2")
SCALING = ScalingConfig(workflows=4)

held_by_engine = st.dictionaries(st.sampled_from([*ENGINES, NOWHERE]), st.integers(0, 50))


@pytest_asyncio.fixture
async def coordinator() -> AsyncIterator[CacheCoordinator]:
    coordinator = CacheCoordinator(CoordinatorConfig())
    yield coordinator
    for task in coordinator._tasks:
        task.cancel()
    coordinator._link.close()


async def test_engines_are_added_for_those_who_wait(coordinator: CacheCoordinator) -> None:
    engines = {name: MadeUpEngine(name) for name in ENGINES[:2]}
    demands = {name: EngineDemand(0.8, 100) for name in engines}
    door = Admission(AdmissionConfig(mode=2), lambda: list(engines), retry_after_s=2, name="ingress")
    door.refresh()

    async def wanted() -> int:
        """Engines, by what the two that there are say of themselves."""
        await coordinator.take(encode(door.report()))
        stats = []
        for name, engine in engines.items():
            answer = decode(await coordinator.take(encode(engine.report())))
            assert isinstance(answer, SyncAnswer)
            stats.append(demands[name].stats(0, answer.held, None, time.monotonic()))
        return decide(Observation(stats, 0, 0.0, len(engines), 1, 9), None, SCALING, time.monotonic())[0].target

    tickets = []
    for number in range(16):
        tickets.append(door.ask(RequestIdentity(f"w{number}", "agent", source="header")))
        if not tickets[-1].held:
            demands[str(tickets[-1].engine)].began(f"r{number}", f"w{number}", 10, time.monotonic())
    assert sum(ticket.held for ticket in tickets) == 12
    for _ in range(2):  # the first answer to an engine comes before the other is known
        target = await wanted()
    assert target == 4, "four that are in and twelve that wait, four an engine"
    for ticket in tickets[8:]:
        door.leave(ticket)
    assert await wanted() == 2, "nobody waits any more than two engines can take"


@given(st.lists(held_by_engine, max_size=3))
def test_whoever_waits_is_counted_by_one_engine_or_by_all_in_shares(reports: list[dict[str, int]]) -> None:
    ingresses = Ingresses()
    for number, held in enumerate(reports):
        ingresses.hear(AdmissionReport(f"i{number}", 1, 1, {}, held, [], []), 1.0)
    told = sum(ingresses.waiting(engine, len(ENGINES)) for engine in ENGINES)
    assert told == pytest.approx(sum(sum(held.values()) for held in reports))


@given(st.floats(0, 1e6), st.integers(0, 5))
def test_an_engine_adds_them_to_its_own(held: float, running: int) -> None:
    demand = EngineDemand(0.8, 100)
    for number in range(running):
        demand.began(f"r{number}", f"w{number}", 10, 0.0)
    assert demand.stats(0, held, None, 1.0).workflows == pytest.approx(running + held)
