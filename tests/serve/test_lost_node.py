"""A node is lost under load, with all that is on it: what of the calls, of its workflows, and of the cluster."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from local_cluster import LocalCluster
from running_server import ENGINE, MODEL, RANDOM_MODEL, Server, eventually, free_port

START_LIMIT_S = 300
WORKFLOWS = 8
LONG = 1500  # tokens of a stream that is on its way when the node goes


@dataclass(frozen=True)
class Call:
    """What came of a call. `error`: "" if it was answered whole."""

    workflow: str
    began: float
    ended: float
    engine: str
    stream: bool
    error: str


class Load:
    """Workflows that call one time after the other, every second call a stream, until they are told to stop."""

    def __init__(self, server: Server) -> None:
        self.calls: list[Call] = []
        self._server = server
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(f"w{number}",), daemon=True) for number in range(WORKFLOWS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, workflow: str) -> None:
        number = 0
        with httpx.Client(base_url=self._server.url, timeout=120) as http:
            while not self._over.is_set():
                self.calls.append(call(http, workflow, stream=number % 2 == 1, max_tokens=24))
                number += 1

    def homes(self) -> dict[str, str]:
        """Where each workflow's latest call went."""
        return {one.workflow: one.engine for one in self.calls if one.engine}

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=150)
            assert not thread.is_alive(), "a call waits for ever"


def call(
    http: httpx.Client, workflow: str, stream: bool, max_tokens: int, on_begun: Callable[[], object] = lambda: None
) -> Call:
    """A call and what came of it, whatever that is. `on_begun`: its reply has begun."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "go on"}], "ignore_eos": True, "stream": stream}
    began, engine, error = time.monotonic(), "", ""
    try:
        with http.stream(
            "POST",
            "/v1/chat/completions",
            json=body | {"max_tokens": max_tokens},
            headers={"x-workflow-id": workflow, "x-agent-name": "worker"},
        ) as reply:
            engine = reply.headers.get("x-engine-id", "")
            on_begun()
            lines = [line for line in reply.iter_lines() if line]
            error = wrong(reply.status_code, stream, lines)
    except httpx.HTTPError as lost:
        error = type(lost).__name__
    return Call(workflow, began, time.monotonic(), engine, stream, error)


def wrong(status: int, stream: bool, lines: list[str]) -> str:
    """What is wrong with a reply; "": nothing."""
    if status != 200:
        return f"{status} {lines}"
    if stream and lines[-1] != "data: [DONE]":
        return str(json.loads(lines[-1].removeprefix("data: "))["error"]["code"])
    return ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with contextlib.closing(LocalCluster(tmp_path, free_port())) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_node_that_is_lost_under_load_costs_the_streams_on_it_and_comes_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    args: dict[str, Any] = {
        "model": RANDOM_MODEL,
        "engine": ENGINE | {"device": "cpu", "enable_hierarchical_cache": False},
        "deployment": {
            "num_cpus": 0.5,
            "num_gpus": 1,  # made up: one engine a node
            "cpu_threads": 1,
            "autoscaling_config": {"min_replicas": 2, "max_replicas": 2},  # all else is on the head node, which stays
        },
        "cache": {"learned_dir": ""},
        "predictor": {"enabled": False},
    }
    with contextlib.closing(Server(tmp_path, args, cluster.environment)) as server:
        # Before there are others: `serve run` takes any node of this machine for the head node.
        eventually(server.answers, "the endpoint", START_LIMIT_S)
        nodes = [cluster.add_node(f"worker-{number}") for number in range(2)]
        assert cluster.nodes() == 3
        server.wait(engines=2)
        before = {engine["id"]: engine for engine in server.engines()}
        load = Load(server)
        eventually(lambda: set(load.homes().values()) == before.keys(), "both engines have workflows", 60)

        victim = load.homes()["w0"]
        processes = {process.pid for process in nodes[0].processes()}
        node = nodes[0] if set(before[victim]["pids"]) & processes else nodes[1]
        processes = node.processes()
        long: list[Call] = []
        begun = threading.Semaphore(0)
        with httpx.Client(base_url=server.url, timeout=120) as http:

            def stream_long() -> None:
                long.append(call(http, "w0", stream=True, max_tokens=LONG, on_begun=begun.release))

            streams = [threading.Thread(target=stream_long) for _ in range(2)]
            for stream in streams:
                stream.start()
            assert all(begun.acquire(timeout=30) for _ in streams)
            moved = [workflow for workflow, engine in load.homes().items() if engine == victim]
            killed = time.monotonic()
            node.kill()
            for stream in streams:
                stream.join(timeout=60)
        assert not any(psutil.pid_exists(process.pid) for process in processes)
        went_on = time.monotonic()
        eventually(lambda: all(load.homes()[workflow] != victim for workflow in moved), "its workflows go on", 60)
        eventually(
            lambda: {one.workflow for one in list(load.calls) if one.began > went_on} >= set(moved),
            "all of them call again",
            60,
        )
        (other,) = before.keys() - {victim}
        assert [engine["id"] for engine in server.engines()] == [other]

        cluster.add_node("replacement")
        server.wait(engines=2)
        (new,) = {engine["id"] for engine in server.engines()} - {other}
        healed = time.monotonic()
        eventually(
            lambda: server.chat(headers={"x-workflow-id": f"new-{time.monotonic()}"}).headers.get("x-engine-id") == new,
            "new workflows go to the new engine",
            60,
        )
        load.stop()

    assert [(one.engine, one.error) for one in long] == [(victim, "engine_unavailable")] * 2
    failed = [one for one in load.calls if one.error]
    assert all(
        one.stream and one.engine == victim and one.error == "engine_unavailable" and one.began < killed < one.ended
        for one in failed
    ), failed
    longest = max(one.ended - one.began for one in load.calls if one.ended > killed)
    print(f"{len(load.calls)} calls, {len(failed)} streams cut, the longest call {longest:.1f} s after the kill")
    print(f"engine back after {healed - killed:.1f} s")
