"""Engines that die and engines that get stuck. The last tests on the shared server, for they replace its engines."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable

import httpx
import psutil
import pytest
from limited_server import Limited
from running_server import MODEL, Server, eventually, is_alive

RESTART_LIMIT_S = 60 + 60


def scheduler_of(engine: dict[str, object]) -> int:
    pids = engine["pids"]
    assert isinstance(pids, list)
    return next(pid for pid in pids if "scheduler" in " ".join(psutil.Process(pid).cmdline()))


def actor_of(engine: dict[str, object]) -> int:
    """The process of its replica, whose children the others are."""
    parent = psutil.Process(scheduler_of(engine)).parent()
    assert parent is not None
    return parent.pid


def lose_engine(
    server: Server, signal_number: int, limit_s: float, of: Callable[[dict[str, object]], int] = scheduler_of
) -> float:
    """Sends calls to an engine, the signal to one of its processes; the seconds until the last of its streams had an
    error.

    A call of which the client has nothing yet is answered by the other engine.
    """
    victim_id = server.chat(headers={"x-workflow-id": "victim"}).headers["x-engine-id"]
    victim = server.engine(victim_id)
    processes = [psutil.Process(pid) for pid in victim["pids"]]
    actor = psutil.Process(actor_of(victim))
    target = of(victim)
    headers = {"x-workflow-id": "victim"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "go on"}], "ignore_eos": True}

    async def stream(http: httpx.AsyncClient) -> tuple[str, float]:
        async with http.stream(
            "POST", "/v1/chat/completions", json=body | {"max_tokens": 3500, "stream": True}, headers=headers
        ) as reply:
            assert reply.status_code == 200
            last = [line async for line in reply.aiter_lines() if line][-1]
        return last, time.monotonic()

    async def run() -> float:
        async with httpx.AsyncClient(base_url=server.url, timeout=limit_s + 60) as http:
            streams = [asyncio.ensure_future(stream(http)) for _ in range(2)]
            plain = asyncio.ensure_future(
                http.post("/v1/chat/completions", json=body | {"max_tokens": 600}, headers=headers)
            )
            await asyncio.to_thread(eventually, lambda: server.engine(victim_id).get("running") == 3, "calls run", 30)
            os.kill(target, signal_number)
            killed = time.monotonic()
            ends = await asyncio.gather(*streams)
            reply = await plain
        for last, _ in ends:
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == "engine_unavailable"
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-engine-id"] != victim_id
        assert reply.json()["usage"]["completion_tokens"] == 600
        return max(at for _, at in ends) - killed

    took = asyncio.run(run())
    assert server.chat(headers={"x-workflow-id": "victim"}).status_code == 200
    eventually(lambda: not any(is_alive(process) for process in [*processes, actor]), "the old engine is gone", 30)
    eventually(
        lambda: len(ids := {engine["id"] for engine in server.engines()}) == 2 and victim_id not in ids,
        "a new engine",
        RESTART_LIMIT_S,
    )
    assert server.chat(headers={"x-workflow-id": "victim"}).status_code == 200
    return took


def test_a_killed_scheduler_fails_its_streams_at_once_and_is_replaced(server: Server) -> None:
    assert lose_engine(server, signal.SIGKILL, limit_s=10) < 5


def test_a_stuck_scheduler_is_found_out_and_replaced(server: Server) -> None:
    stall_s = server.args["health"]["stall_s"]
    assert stall_s - 1 < lose_engine(server, signal.SIGSTOP, limit_s=60) < stall_s + 10


def test_a_killed_actor_takes_its_engine_along_and_fails_its_streams_alone(server: Server) -> None:
    assert lose_engine(server, signal.SIGKILL, limit_s=10, of=actor_of) < 5


@pytest.mark.parametrize("engines", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_calls_that_wait_at_the_door_when_engines_die_get_in_and_no_place_is_lost(
    limited: Limited, engines: int
) -> None:
    server = limited.server
    names = [f"{limited.name}-waits-{number}" for number in range(3)]
    waiting = [limited.call_later(name) for name in names]
    lost = limited.engines[:engines]
    for actor in [actor_of(server.engine(engine)) for engine in lost]:
        os.kill(actor, signal.SIGKILL)
    # Places are free when workflows have been idle for too long, and on the engines that come instead.
    eventually(lambda: all(call.done() for call in waiting), "all get in", RESTART_LIMIT_S)
    assert [call.result().status_code for call in waiting] == [200] * 3
    assert not {call.result().headers["x-engine-id"] for call in waiting} & set(lost)
    server.wait(engines=2)
    for name in (*names, *limited.inside):
        limited.end(name)

    def empty() -> bool:
        status = limited.status()
        return (
            (status["held"], status["held_calls"], status["tenants"]) == (0, 0, [])
            and [one["admitted"] for one in status["engines"]] == [0, 0]
            and not {one["id"] for one in status["engines"]} & set(lost)
        )

    eventually(empty, f"no place is taken: {limited.status()}", 10)


def test_without_the_coordinator_calls_are_routed_workflows_stay_and_leave_an_engine_that_is_lost(
    server: Server,
) -> None:
    def route(workflow: str) -> tuple[str, str]:
        reply = server.chat(headers={"x-workflow-id": workflow})
        assert reply.status_code == 200, reply.text
        return reply.headers["x-engine-id"], reply.headers["x-forecache-route"]

    new = (f"routed-{number}" for number in itertools.count())
    homes = {name: route(name)[0] for name in (f"kept-{number}" for number in range(4))}
    stay = {name: (home, "sticky") for name, home in homes.items()}

    def routes() -> dict[str, tuple[str, str]]:
        return {name: route(name) for name in homes}  # often enough that none of them ends

    def stay_until(check: Callable[[], object], what: str, limit_s: float) -> None:
        eventually(lambda: routes() == stay and check(), what, limit_s)

    with server.silent_coordinator():
        stay_until(lambda: route(next(new))[1] == "hash", "snapshots are stale", 20)
        lost = homes["kept-0"]
        os.kill(actor_of(server.engine(lost)), signal.SIGKILL)
        moved = routes()
        assert all(
            engine != lost and why == ("hash" if homes[name] == lost else "sticky")
            for name, (engine, why) in moved.items()
        )
        stay = {name: (engine, "sticky") for name, (engine, _) in moved.items()}
        stay_until(lambda: len(server.engines()) == 2, "a new engine", RESTART_LIMIT_S)
    stay_until(lambda: route(next(new))[1] in ("least-loaded", "anchor"), "snapshots are back", 60)
