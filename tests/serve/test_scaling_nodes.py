"""Bursts of workflows bring nodes and engines up, and their ends take them down again; no call fails."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running_server import ENGINE, MODEL, RANDOM_MODEL, Server, eventually, is_alive
from scaling_cluster import ScalingCluster

# A node's and an engine's start on a machine that has other things to do.
START_LIMIT_S = 300
WORKFLOWS, CALLS = 4, 2
# Long enough to be an anchor that is warmed up on a new engine.
ANCHOR = {"role": "system", "content": "You are the agent that all of these workflows begin with. " * 10}


def config(least: int, most: int, **scaling: float) -> dict[str, Any]:
    return {
        "model": RANDOM_MODEL,
        "engine": ENGINE | {"device": "cpu", "enable_hierarchical_cache": False},
        "deployment": {
            "num_cpus": 0.5,
            "num_gpus": 1,  # made up: an engine needs a node that the cluster does not have yet
            "cpu_threads": 1,
            "autoscaling_config": {"min_replicas": least, "max_replicas": most},
        },
        "scaling": scaling,
        "limits": {"engine_wait_s": START_LIMIT_S},
        "cache": {"learned_dir": ""},
        "predictor": {"enabled": False},
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_burst_brings_a_node_and_an_engine_and_its_end_takes_them_away(tmp_path: Path) -> None:
    with (
        contextlib.closing(ScalingCluster(tmp_path, workers=1)) as cluster,
        contextlib.closing(Server(tmp_path, config(0, 1, zero_after_s=3), cluster.environment)) as server,
    ):
        server.http.timeout = httpx.Timeout(START_LIMIT_S)
        eventually(server.answers, "the endpoint", START_LIMIT_S)
        with ThreadPoolExecutor(WORKFLOWS) as pool:
            of_workflows = list(pool.map(lambda number: calls(server, f"w{number}"), range(WORKFLOWS)))
        assert [reply.status_code for replies in of_workflows for reply in replies] == [200] * WORKFLOWS * CALLS
        assert cluster.nodes() == 2
        (engine,) = server.engines()
        processes = [psutil.Process(pid) for pid in engine["pids"]]

        eventually(lambda: not server.engines(), "the engine is gone", 90, every_s=2)
        eventually(lambda: not any(is_alive(process) for process in processes), "its processes are gone")
        eventually(lambda: cluster.nodes() == 1, "its node is gone", 120)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_one_engine_to_two_and_back_with_calls_all_the_while(tmp_path: Path) -> None:
    args = config(1, 2, workflows=3, down_after_s=15)
    with (
        contextlib.closing(ScalingCluster(tmp_path, workers=2)) as cluster,
        contextlib.closing(Server(tmp_path, args, cluster.environment)) as server,
    ):
        server.http.timeout = httpx.Timeout(START_LIMIT_S)
        eventually(server.answers, "the endpoint", START_LIMIT_S)
        server.wait(engines=1)
        (first,) = (engine["id"] for engine in server.engines())
        load = Load(server)
        load.begin("stays")
        eventually(lambda: load.replies and not load.failed, "it is answered", 60)
        assert cluster.nodes() == 2

        for number in range(6):
            load.begin(f"burst-{number}")
        server.wait(engines=2)
        assert cluster.nodes() == 3
        (second,) = {engine["id"] for engine in server.engines()} - {first}
        coordinator = "/v1/coordinator"
        eventually(  # it is told with the next report
            lambda: server.http.get(coordinator).json()["counts"].get("warm_ups_done"), "the anchor was warmed up", 10
        )
        load.begin("new")
        eventually(lambda: load.engines("new"), "it is answered", 60)
        assert load.engines("new") == {second}
        assert load.first_cached["new"] > 0, "its anchor was not computed again"

        for number in range(6):
            load.end(f"burst-{number}")
        load.end("new")
        eventually(lambda: len(server.engines()) == 1, "one engine goes", 120, every_s=2)
        eventually(lambda: cluster.nodes() == 2, "and its node", 120)
        replies = load.replies
        eventually(lambda: load.replies > replies, "the other answers")
        load.end("stays")
        assert load.failed == []


class Load:
    """Workflows that call one time after the other from `begin` to `end`.

    Attributes:
        replies: so far.
        failed: those that were not 200, as text.
        first_cached: tokens of each workflow's first prompt that were in the cache.
    """

    def __init__(self, server: Server) -> None:
        self.replies = 0
        self.failed: list[str] = []
        self.first_cached: dict[str, int] = {}
        self._engines: dict[str, set[str]] = {}
        self._server = server
        self._threads: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def begin(self, workflow: str) -> None:
        over = threading.Event()
        self._threads[workflow] = thread, _ = threading.Thread(target=self._run, args=(workflow, over)), over
        thread.start()

    def end(self, workflow: str) -> None:
        thread, over = self._threads.pop(workflow)
        over.set()
        thread.join(timeout=120)
        assert not thread.is_alive(), "a call waits for ever"

    def engines(self, workflow: str) -> set[str]:
        """Those that have answered it."""
        return set(self._engines.get(workflow, ()))

    def _run(self, workflow: str, over: threading.Event) -> None:
        body = {"model": MODEL, "messages": [ANCHOR, {"role": "user", "content": workflow}], "max_tokens": 4}
        with httpx.Client(base_url=self._server.url, timeout=START_LIMIT_S) as http:
            last = False
            while not last:
                last = over.wait(0.5)
                headers = {"x-workflow-id": workflow, "x-agent-name": "starter"}
                headers |= {"x-workflow-final": "true"} if last else {}
                try:
                    reply = http.post("/v1/chat/completions", json=body, headers=headers)
                except httpx.HTTPError as error:
                    self.failed.append(f"{workflow}: {type(error).__name__}")
                    continue
                if reply.status_code != 200:
                    self.failed.append(f"{workflow}: {reply.status_code} {reply.text}")
                    continue
                self.replies += 1
                self._engines.setdefault(workflow, set()).add(reply.headers["x-engine-id"])
                details = reply.json()["usage"]["prompt_tokens_details"] or {}
                self.first_cached.setdefault(workflow, details.get("cached_tokens", 0))


def calls(server: Server, workflow: str) -> list[httpx.Response]:
    return [server.chat(headers={"x-workflow-id": workflow}) for _ in range(CALLS)]
