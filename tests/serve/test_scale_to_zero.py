"""An engine that goes when nothing is to do, and comes back for calls that wait, all without the cache coordinator; no
call fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
from running_server import ENGINE, RANDOM_MODEL, Server, eventually, is_alive

# An engine's start on a machine that has other things to do.
START_LIMIT_S = 300


def test_without_the_coordinator_the_engine_goes_when_idle_and_calls_that_wait_bring_it_back(tmp_path: Path) -> None:
    server = Server(
        tmp_path,
        {
            "model": RANDOM_MODEL,
            "engine": ENGINE | {"enable_hierarchical_cache": False},
            "deployment": {"num_cpus": 0.5, "autoscaling_config": {"min_replicas": 0, "max_replicas": 1}},
            "scaling": {"zero_after_s": 3},
            "limits": {"engine_wait_s": START_LIMIT_S},
            "cache": {"learned_dir": ""},
            "predictor": {"enabled": False},
        },
    )
    server.http.timeout = httpx.Timeout(START_LIMIT_S)
    try:
        eventually(lambda: answers(server), "the endpoint", START_LIMIT_S)
        first = server.chat(headers={"x-workflow-id": "first"})
        assert first.status_code == 200, first.text
        (engine,) = server.engines()
        processes = [psutil.Process(pid) for pid in engine["pids"]]

        with server.silent_coordinator():
            eventually(lambda: not server.engines(), "the engine is gone", 90, every_s=2)
            eventually(lambda: not any(is_alive(process) for process in processes), "its memory is free")

            with ThreadPoolExecutor(4) as pool:
                replies = list(pool.map(lambda number: server.chat(headers={"x-workflow-id": f"w{number}"}), range(4)))
        assert [reply.status_code for reply in replies] == [200] * 4
        assert {answer(reply) for reply in replies} == {answer(first)}
        assert {reply.headers["x-engine-id"] for reply in replies} != {engine["id"]}
    finally:
        server.close()


def answers(server: Server) -> bool:
    try:
        return server.http.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def answer(reply: httpx.Response) -> str:
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text
