"""Calls to engines that fail in every way: what is sent again, where to, and what the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from cache_actor.messages import RequestIdentity
from serving.calls import JSON, SSE, EngineCall, Reply
from serving.config import LimitsConfig
from serving.engine_calls import EngineCalls
from serving.errors import ApiError
from serving.routing_table import RoutingTable

CALL = EngineCall("chat", {"messages": []}, RequestIdentity("w", "a", source="header"), "rid")
DEAD = ActorDiedError()
AWAY = ActorUnavailableError("its node is dead, and nobody knows", None)
DOWN = Reply(503, JSON, "?", b"down", retry_after_s=1, lost=True)

Said = list[Reply | bytes | Exception] | None
"""What an engine says; None: never anything."""


class Response:
    """What Serve gives for a streaming call."""

    def __init__(self, said: Said) -> None:
        self.said = said
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[Reply | bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[Reply | bytes]:
        if self.said is None:
            await asyncio.Event().wait()
        for one in self.said or ():
            await asyncio.sleep(0)
            if isinstance(one, Exception):
                raise one
            yield one

    def cancel(self) -> None:
        self.cancelled = True


class Engines:
    """Stands where the deployment's handle does: sends each call where the table says, as Serve's router does."""

    def __init__(self, says: Callable[[str, int], Said], engines: list[str]) -> None:
        self.table = RoutingTable("session-hash")
        self.table.set_engines(engines)
        self.says = says
        self.asked: list[str] = []
        self.responses: list[Response] = []
        self.call = self

    def options(self, stream: bool) -> Engines:
        assert stream
        return self

    def remote(self, call: EngineCall) -> Response:
        decision = self.table.decide(call)
        assert decision is not None
        self.asked.append(decision.engine)
        self.responses.append(Response(self.says(decision.engine, len(self.asked))))
        return self.responses[-1]

    async def answers(self) -> list[Reply | bytes]:
        calls = EngineCalls(self, self.table, LimitsConfig())  # type: ignore[arg-type]
        return [part async for part in calls.parts(CALL)]


def on_first(first: Said) -> Callable[[str, int], Said]:
    """The first engine that is asked says this; another answers."""
    return lambda engine, number: first if number == 1 else [Reply(200, JSON, engine, b"fine")]


@pytest.mark.parametrize("first", [[DEAD], [AWAY], [DOWN]], ids=["dead", "unavailable", "says it is down"])
async def test_a_call_that_has_said_nothing_is_sent_to_another_engine_once(first: Said) -> None:
    engines = Engines(on_first(first), ["a", "b"])
    (reply,) = await engines.answers()
    assert isinstance(reply, Reply)
    assert (reply.status, reply.engine) == (200, engines.asked[1])
    assert len(set(engines.asked)) == 2
    assert engines.table.engines() == [engines.asked[1]]
    assert engines.table.counts["retried"] == 1


@pytest.mark.parametrize("said", [[DEAD], [DOWN]], ids=["dead", "says it is down"])
async def test_it_is_sent_no_more_than_twice(said: Said) -> None:
    engines = Engines(lambda engine, number: said, ["a", "b", "c"])
    if said == [DOWN]:
        assert await engines.answers() == [DOWN]
    else:
        with pytest.raises(ApiError, match="the engine is down") as failed:
            await engines.answers()
        assert failed.value.status == 503
        assert failed.value.retry_after_s
    assert len(engines.asked) == 2


async def test_without_another_engine_the_client_is_told_at_once() -> None:
    with pytest.raises(ApiError, match="ActorDiedError"):
        await Engines(on_first([DEAD]), ["a"]).answers()


async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    engines = Engines(on_first([Reply(200, SSE, "?", b"data: x"), b"more", DEAD]), ["a", "b"])
    calls = EngineCalls(engines, engines.table, LimitsConfig())  # type: ignore[arg-type]
    parts = calls.parts(CALL)
    assert isinstance(await anext(parts), Reply)
    assert await anext(parts) == b"more"
    with pytest.raises(ApiError, match="lost while it answered"):
        await anext(parts)
    assert len(engines.asked) == 1
    assert len(engines.table.engines()) == 1


async def test_calls_that_are_lost_with_an_engine_are_all_answered_by_the_other() -> None:
    engines = Engines(lambda engine, number: [DEAD] if number <= 5 else [Reply(200, JSON, engine, b"fine")], ["a", "b"])
    calls = EngineCalls(engines, engines.table, LimitsConfig())  # type: ignore[arg-type]

    async def reply(number: int) -> Reply | bytes:
        (said,) = [part async for part in calls.parts(replace(CALL, rid=f"r{number}"))]
        return said

    replies = await asyncio.gather(*(reply(number) for number in range(5)))
    assert len(set(engines.asked[:5])) == 1
    assert engines.table.engines() == [engines.asked[5]]
    assert {one.engine for one in replies if isinstance(one, Reply)} == {engines.asked[5]}
    assert engines.table._flights == {}


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_is_only_busy_is_not_left(status: int) -> None:
    busy = Reply(status, JSON, "a", b"the request queue is full", retry_after_s=1)
    engines = Engines(on_first([busy]), ["a", "b"])
    (reply,) = await engines.answers()
    assert isinstance(reply, Reply)
    assert (reply.status, reply.body) == (status, busy.body)
    assert len(engines.asked) == 1
    assert engines.table.engines() == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RayServeException("of a kind that nobody expects"), 500),
        (BackPressureError(num_queued_requests=1, max_queued_requests=1), 429),
        (RayTaskError("f", "", ValueError()), 500),
    ],
)
async def test_what_another_engine_would_not_do_better_is_not_sent_again(error: Exception, status: int) -> None:
    engines = Engines(on_first([error]), ["a", "b"])
    with pytest.raises(ApiError) as failed:
        await engines.answers()
    assert failed.value.status == status
    assert len(engines.asked) == 1
    assert engines.table.engines() == ["a", "b"]


async def test_a_reply_says_why_it_came_from_there_and_the_table_learns_its_length() -> None:
    engines = Engines(on_first([Reply(200, JSON, "a", b"fine", prompt_tokens=70)]), ["a", "b"])
    (reply,) = await engines.answers()
    assert isinstance(reply, Reply)
    assert reply.route == "hash"
    assert engines.table._flights == {}


async def test_a_client_that_leaves_cancels_the_call() -> None:
    engines = Engines(on_first([Reply(200, SSE, "a", b"data: x"), *[b"more"] * 1000]), ["a", "b"])
    calls = EngineCalls(engines, engines.table, LimitsConfig())  # type: ignore[arg-type]
    parts = calls.parts(CALL)
    await anext(parts)
    await parts.aclose()
    assert engines.responses[0].cancelled
    assert engines.table._flights == {}


@pytest.mark.parametrize("steps", range(6))
async def test_a_client_that_leaves_before_the_first_word_leaves_nothing_behind(steps: int) -> None:
    engines = Engines(lambda engine, number: [DEAD] if number == 1 else None, ["a", "b"])
    call = asyncio.ensure_future(engines.answers())
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert all(response.cancelled for response in engines.responses)
    assert engines.table._flights == {}
    assert not any(engines.table._running.values())
    assert engines.table.decide_again(CALL) is None
