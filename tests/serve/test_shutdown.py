"""A redeploy and `serve shutdown` leave nothing of an engine but what it has learned.

(Ctrl-C: at the end of the shared server's fixture.)
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from running_server import ENGINE, RANDOM_MODEL, Server, eventually, is_alive, leftovers, run_tool

SOMEBODY = {"x-workflow-id": "w", "x-agent-name": "somebody"}
SERVE = Path(sys.executable).parent / "serve"


def engine_processes(server: Server) -> list[psutil.Process]:
    (engine,) = server.engines()
    children = [psutil.Process(pid) for pid in engine["pids"]]
    parent = children[0].parent()
    assert parent is not None
    return [*children, parent]


def knows(server: Server, text: str) -> float:
    """Observations behind the chances of what a call has just brought into the only engine's cache."""
    assert server.chat(text, headers=SOMEBODY).status_code == 200
    (engine,) = server.engines()
    nodes = server.http.get(f"/v1/engines/{engine['id']}/cache").json()["nodes"]
    return float(sum(one["observations"] for node in nodes for one in node["chance"]["device"]["evidence"]))


def test_a_redeploy_and_a_shutdown_leave_no_process_of_ours(tmp_path: Path) -> None:
    learned = tmp_path / "learned" / "random.json"
    args = {
        "model": RANDOM_MODEL,
        "engine": ENGINE | {"max_total_tokens": 4000},
        "deployment": {"num_cpus": 0.5},
        "cache": {"learned_dir": str(learned.parent), "learned_period_s": 0.2},
    }
    server = Server(tmp_path, args)
    try:
        server.wait(engines=1)
        first, first_id = engine_processes(server), server.engines()[0]["id"]
        assert knows(server, "before anything was evicted") == 0
        for number in range(40):  # each of its own, more than the device holds
            server.chat(f"{number} " * 300, headers=SOMEBODY)
        eventually(lambda: learned.exists() and b'"private"' in learned.read_bytes(), "something was learned")

        redeployed = server.write_config(args | {"engine": args["engine"] | {"max_running_requests": 4}})
        run_tool(SERVE, "deploy", redeployed)
        eventually(lambda: [engine["id"] for engine in server.engines()] not in ([], [first_id]), "a redeploy", 180)
        eventually(lambda: not any(is_alive(process) for process in first), "the old engine is gone", 60)
        assert knows(server, "after the redeploy") > 0

        second = engine_processes(server)
        run_tool(SERVE, "shutdown", "-y")
        eventually(lambda: not any(is_alive(process) for process in second), "`serve shutdown` ends it", 60)
        assert not leftovers(second, server.shared_memory_before)
    finally:
        server.close()
