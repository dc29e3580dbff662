"""Serve's own routing with our router in it: calls of engines that are dead, unreachable or full."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from cache_actor.messages import RequestIdentity
from serving.calls import EngineCall, EngineQuery
from serving.router import EngineRouter
from serving.routing_table import LOST_S, routing_table

DEPLOYMENT = DeploymentID("EngineReplica", "forecache")
ENGINES = ("a", "b", "c")
LIMIT_S = 10.0


class Replica:
    """Stands where Serve's wrapper of a replica does: says how much it has to do, or that it cannot be asked."""

    max_ongoing_requests = 1
    is_cross_language = False

    def __init__(self, engine: str) -> None:
        self.replica_id = ReplicaID(engine, DEPLOYMENT)
        self.running = 0
        self.fails: Exception | None = None

    async def get_queue_len(self, *, deadline_s: float) -> int:
        if self.fails is not None:
            raise self.fails
        return self.running


class Serve:
    """The router of a handle, and the table that it shares with the ingress."""

    def __init__(self, router: str) -> None:
        name = uuid.uuid4().hex
        self.now = 1000.0
        self.table = routing_table(name, router)
        self.table._clock = lambda: self.now
        self.router = EngineRouter(
            DEPLOYMENT, DeploymentHandleSource.REPLICA, initial_backoff_s=0.01, max_backoff_s=0.01
        )
        self.router.initialize_state(name, router, {}, 100)
        self.replicas = {engine: Replica(engine) for engine in ENGINES}
        self.name(ENGINES)

    def name(self, engines: Iterable[str]) -> None:
        self.router.update_replicas([self.replicas[engine] for engine in engines])

    async def sent(self, asked: EngineCall | EngineQuery) -> str:
        """The engine to which a call or a question goes, which is waited for."""
        request = PendingRequest([asked], {}, RequestMetadata(uuid.uuid4().hex, uuid.uuid4().hex))
        async with asyncio.timeout(LIMIT_S):
            replica = await self.router._choose_replica_for_request(request)
        engine: str = replica.replica_id.unique_id
        return engine

    def decide(self, number: int) -> tuple[EngineCall, str]:
        """A call of one workflow, and the engine that the ingress knows of."""
        call = EngineCall("chat", {"messages": []}, RequestIdentity("w", "a", source="header"), f"r{number}")
        decision = self.table.decide(call)
        assert decision is not None
        return call, decision.engine


@pytest.fixture(params=["workflow", "session-hash"])
async def serve(request: pytest.FixtureRequest) -> Serve:
    return Serve(request.param)


async def test_a_call_goes_where_the_table_says(serve: Serve) -> None:
    for number in range(5):
        call, engine = serve.decide(number)
        assert await serve.sent(call) == engine


async def test_a_call_waits_for_its_engine_while_that_is_full(serve: Serve) -> None:
    call, engine = serve.decide(0)
    serve.replicas[engine].running = 1
    coming = asyncio.ensure_future(serve.sent(call))
    await asyncio.sleep(0.1)
    assert not coming.done()
    serve.replicas[engine].running = 0
    assert await coming == engine


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("no connection", None)])
async def test_a_call_whose_engine_cannot_be_reached_goes_to_another_at_once(serve: Serve, error: Exception) -> None:
    call, engine = serve.decide(0)
    serve.replicas[engine].fails = error
    other = await serve.sent(call)
    assert other != engine
    assert engine not in serve.table.engines()
    assert (serve.decide(0)[1], serve.decide(1)[1]) == (other, other)
    decision = serve.table.begun(call, 10)
    assert decision is not None
    assert decision.engine == other


async def test_a_dead_engine_is_not_taken_back_before_serve_names_it(serve: Serve) -> None:
    call, engine = serve.decide(0)
    serve.replicas[engine].fails = ActorDiedError()
    await serve.sent(call)
    serve.now += 10 * LOST_S
    assert engine not in serve.table.engines()
    serve.replicas[engine].fails = None
    serve.name(ENGINES)
    assert engine in serve.table.engines()


async def test_one_that_could_not_be_reached_is_tried_again_after_a_while(serve: Serve) -> None:
    call, engine = serve.decide(0)
    serve.replicas[engine].fails = ActorUnavailableError("no connection", None)
    await serve.sent(call)
    serve.replicas[engine].fails = None
    serve.now += LOST_S + 0.1
    assert engine in serve.table.engines()


async def test_what_serve_still_does_for_a_client_that_has_left_counts_nowhere(serve: Serve) -> None:
    call, engine = serve.decide(0)
    serve.replicas[engine].running = 1
    coming = asyncio.ensure_future(serve.sent(call))
    await asyncio.sleep(0.05)
    serve.table.over(call)
    await asyncio.sleep(0.05)
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)
    assert serve.table._flights == {}
    assert not any(serve.table._running.values())


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("no connection", None)])
async def test_a_question_to_an_engine_that_is_gone_does_not_wait_for_it(serve: Serve, error: Exception) -> None:
    assert await serve.sent(EngineQuery("b")) == "b"
    serve.replicas["b"].fails = error
    assert await serve.sent(EngineQuery("b")) in ("a", "c")
