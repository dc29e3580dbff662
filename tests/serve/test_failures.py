"""Engines that die and engines that get stuck. The last tests on the shared server, for they replace its engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import httpx
import psutil
from running_server import MODEL, Server, eventually, is_alive

RESTART_LIMIT_S = 60 + 60


def scheduler_of(engine: dict[str, object]) -> int:
    pids = engine["pids"]
    assert isinstance(pids, list)
    return next(pid for pid in pids if "scheduler" in " ".join(psutil.Process(pid).cmdline()))


def lose_engine(server: Server, signal_number: int, limit_s: float) -> float:
    """Sends calls to an engine, the signal to its scheduler; the seconds until the last of its streams had an error.

    A call of which the client has nothing yet is answered by the other engine.
    """
    victim_id = server.chat(headers={"x-workflow-id": "victim"}).headers["x-engine-id"]
    victim = server.engine(victim_id)
    processes = [psutil.Process(pid) for pid in victim["pids"]]
    parent = psutil.Process(scheduler_of(victim)).parent()
    assert parent is not None
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
            os.kill(scheduler_of(victim), signal_number)
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
    eventually(lambda: not any(is_alive(process) for process in [*processes, parent]), "the old engine is gone", 30)
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
