"""Fixtures of the serve tests: one `serve run` with two real engines, shared by the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from limited_server import Limited
from running_server import ENGINE, RANDOM_MODEL, Server, eventually, leftovers

# Serve kills a proxy that is not ready within 5 s, and with it `serve run`: too short for a machine that is busy.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A machine has one Serve: first the tests that start their own. Then those on the shared one: first how its
    engines share a load, before what others do is measured as what calls cost; last those that kill engines."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        shared = "server" in getattr(item, "fixturenames", ())
        return shared, ("test_failures" in item.nodeid) - ("test_routing_hits" in item.nodeid)

    items.sort(key=place)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engines, shared by the session. Leaving it is a test of its own: Ctrl-C leaves nothing."""
    args = {
        "model": RANDOM_MODEL,
        "engine": ENGINE,
        "deployment": {"num_replicas": 2, "num_cpus": 0.5},
        "health": {"stall_s": 15},
        "limits": {"max_body_bytes": 200_000, "max_inflight_requests": 64},
        "admission": {"keep_alive_s": 0.3, "max_waiting": 4},
        "identity": {"idle_timeout_s": 8},
        "cache": {"learned_dir": ""},
        "predictor": {"traces_dir": ""},
    }
    running = Server(tmp_path_factory.mktemp("server"), args)
    try:
        running.wait(engines=2)
        yield running
        processes = running.processes()
        running.interrupt()
        before = running.shared_memory_before
        eventually(lambda: not leftovers(processes, before), f"nothing left: {leftovers(processes, before)}", 30)
    finally:
        running.close()


@pytest.fixture
def limited(server: Server) -> Iterator[Limited]:
    """The shared server with one place on each engine, both taken."""
    with ThreadPoolExecutor(8) as pool:
        limited = Limited(server, pool)
        try:
            yield limited
        finally:
            limited.switch("on")
