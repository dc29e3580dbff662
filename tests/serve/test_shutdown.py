"""A redeploy and `serve shutdown` leave nothing of an engine. (Ctrl-C: at the end of the shared server's fixture.)"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from running_server import ENGINE, RANDOM_MODEL, Server, eventually, is_alive, leftovers, run_tool

SERVE = Path(sys.executable).parent / "serve"


def engine_processes(server: Server) -> list[psutil.Process]:
    (engine,) = server.engines()
    children = [psutil.Process(pid) for pid in engine["pids"]]
    parent = children[0].parent()
    assert parent is not None
    return [*children, parent]


def test_a_redeploy_and_a_shutdown_leave_no_process_of_ours(tmp_path: Path) -> None:
    args = {"model": RANDOM_MODEL, "engine": ENGINE, "deployment": {"num_cpus": 0.5}}
    server = Server(tmp_path, args)
    try:
        server.wait(engines=1)
        first, first_id = engine_processes(server), server.engines()[0]["id"]

        redeployed = server.write_config(args | {"engine": ENGINE | {"max_running_requests": 4}})
        run_tool(SERVE, "deploy", redeployed)
        eventually(lambda: [engine["id"] for engine in server.engines()] not in ([], [first_id]), "a redeploy", 180)
        eventually(lambda: not any(is_alive(process) for process in first), "the old engine is gone", 60)
        assert server.chat().status_code == 200

        second = engine_processes(server)
        run_tool(SERVE, "shutdown", "-y")
        eventually(lambda: not any(is_alive(process) for process in second), "`serve shutdown` ends it", 60)
        assert not leftovers(second, server.shared_memory_before)
    finally:
        server.close()
