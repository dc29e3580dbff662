"""A burst of workflows brings a node and an engine up, and its end takes both down again; no call fails."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from running_server import ENGINE, RANDOM_MODEL, Server, eventually, is_alive
from scaling_cluster import ScalingCluster

# A node's and an engine's start on a machine that has other things to do.
START_LIMIT_S = 300
WORKFLOWS, CALLS = 4, 2


@pytest.mark.slow
def test_a_burst_brings_a_node_and_an_engine_and_its_end_takes_them_away(tmp_path: Path) -> None:
    args = {
        "model": RANDOM_MODEL,
        "engine": ENGINE | {"device": "cpu", "enable_hierarchical_cache": False},
        "deployment": {
            "num_cpus": 0.5,
            "num_gpus": 1,  # made up: an engine needs a node that the cluster does not have yet
            "cpu_threads": 1,
            "autoscaling_config": {"min_replicas": 0, "max_replicas": 1},
        },
        "scaling": {"zero_after_s": 3},
        "limits": {"engine_wait_s": START_LIMIT_S},
        "cache": {"learned_dir": ""},
        "predictor": {"enabled": False},
    }
    with (
        contextlib.closing(ScalingCluster(tmp_path, workers=1)) as cluster,
        contextlib.closing(Server(tmp_path, args, cluster.environment)) as server,
    ):
        server.http.timeout = httpx.Timeout(START_LIMIT_S)
        eventually(lambda: answers(server), "the endpoint", START_LIMIT_S)
        with ThreadPoolExecutor(WORKFLOWS) as pool:
            of_workflows = list(pool.map(lambda number: calls(server, f"w{number}"), range(WORKFLOWS)))
        assert [reply.status_code for replies in of_workflows for reply in replies] == [200] * WORKFLOWS * CALLS
        assert cluster.nodes() == 2
        (engine,) = server.engines()
        processes = [psutil.Process(pid) for pid in engine["pids"]]

        eventually(lambda: not server.engines(), "the engine is gone", 90, every_s=2)
        eventually(lambda: not any(is_alive(process) for process in processes), "its processes are gone")
        eventually(lambda: cluster.nodes() == 1, "its node is gone", 120)


def calls(server: Server, workflow: str) -> list[httpx.Response]:
    return [server.chat(headers={"x-workflow-id": workflow}) for _ in range(CALLS)]


def answers(server: Server) -> bool:
    try:
        return server.http.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False
