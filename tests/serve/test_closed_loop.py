"""The closed loop on real engines: forecasts, plans, what is seen of them, and what happens when a part of it dies."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running_server import Server, eventually, run_tool

FORECACHE = Path(sys.executable).parent / "forecache"
AGENTS = ("planner", "coder", "tester")
# Of a plan that nobody renews, and of the coordinator's restart.
RESUME_LIMIT_S = 30


def status(server: Server) -> dict[str, Any]:
    """Of the coordinator; empty while it does not answer."""
    reply = server.http.get("/v1/coordinator")
    return reply.json() if reply.status_code == 200 else {}


def play(server: Server, workflow: str, rounds: int = 1, end: bool = True) -> list[int]:
    """A workflow that calls AGENTS in turn; the status of each call."""
    codes = []
    for number in range(rounds * len(AGENTS)):
        agent = AGENTS[number % len(AGENTS)]
        headers = {"x-workflow-id": workflow, "x-agent-name": agent}
        if end and number + 1 == rounds * len(AGENTS):
            headers["x-workflow-final"] = "true"
        text = f"You are {agent}. " + " ".join(f"{workflow} step {step}." for step in range(number + 1))
        codes.append(server.chat(text, headers).status_code)
    return codes


def replica_of(server: Server, deployment: str) -> psutil.Process:
    """The process of a deployment's one replica."""

    def find() -> psutil.Process | None:
        for process in server.processes():
            try:
                if f":{deployment}" in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        return None

    found: psutil.Process = eventually(find, f"a process of {deployment}")
    return found


class Calls(threading.Thread):
    """Workflows one after the other, until it is told to stop; `failed` are replies other than 200."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(daemon=True)
        self.failed: list[int] = []
        self.made = 0
        self._server = server
        self._name = name
        self._stop_now = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_now.is_set():
            codes = play(self._server, f"{self._name}-{number}")
            self.made += len(codes)
            self.failed += [code for code in codes if code != 200]
            number += 1

    def stop(self) -> None:
        self._stop_now.set()
        self.join(timeout=120)


class TestLoop:
    def test_it_learns_who_comes_next(self, server: Server) -> None:
        for number in range(6):
            assert set(play(server, f"loop-{number}")) == {200}
        play(server, "loop-asked", end=False)

        def told() -> dict[str, Any] | None:
            reply = server.http.get("/v1/coordinator/workflows/loop-asked")
            found: dict[str, Any] = reply.json() if reply.status_code == 200 else {}
            return found if found.get("forecast") and found.get("calls") == len(AGENTS) else None

        found = eventually(told, "a forecast of the workflow")
        assert found["forecast"]["model"]
        assert sum(found["forecast"]["next"].values()) + 1 - found["forecast"]["survival"][0] == pytest.approx(
            1, abs=0.05
        )
        engine = found["engine"]

        def prompt_tokens() -> int:
            told: dict[str, int] = next(one for one in status(server)["engines"] if one["id"] == engine)["counters"]
            return told.get("prompt", 0)

        assert eventually(prompt_tokens, "the engine's counters") > 0

        def right() -> list[float | None]:
            return [share for share in status(server)["accuracy"] if share is not None]

        assert eventually(right, "forecasts were judged")

    def test_both_engines_report_and_their_plans_are_applied(self, server: Server) -> None:
        def well() -> bool:
            now = status(server)
            heard = [one["heard_s_ago"] < 5 and one["plan"] > 0 for one in now.get("engines", ())]
            return len(heard) == 2 and all(heard) and now["counts"].get("plans_applied", 0) > 0

        eventually(well, "two engines with plans")
        assert all(engine["coordinator"]["connected"] for engine in server.engines())

    def test_an_end_is_learned_and_told(self, server: Server) -> None:
        play(server, "loop-ended")
        found = eventually(
            lambda: (
                found
                if not (found := server.http.get("/v1/coordinator/workflows/loop-ended").json()).get("living", True)
                else None
            ),
            "the coordinator knows of the end",
        )
        assert found["decisions"][-1]["text"].startswith("it has ended (final)")


class TestWhatIsSeen:
    def test_top_and_why_answer_people_and_machines(self, server: Server) -> None:
        play(server, "seen", end=False)
        url = f"{server.url}/v1"
        eventually(lambda: server.http.get("/v1/coordinator/workflows/seen").status_code == 200, "it is known")
        look = json.loads(run_tool(FORECACHE, "top", "--json", "--base-url", url))
        assert len(look["engines"]) == 2
        assert "seen" in [one["id"] for one in look["latest"]]
        assert "expected next" in run_tool(FORECACHE, "top", "--once", "--base-url", url)
        assert "planner begins" in run_tool(FORECACHE, "why", "seen", "--base-url", url)
        assert json.loads(run_tool(FORECACHE, "why", "seen", "--json", "--base-url", url))["id"] == "seen"

    def test_it_is_switched_while_it_runs(self, server: Server) -> None:
        url = f"{server.url}/v1"
        try:
            assert run_tool(FORECACHE, "coordinator", "off", "--base-url", url).strip() == "off"
            assert status(server)["mode"] == "off"
            assert set(play(server, "while-off")) == {200}
            assert run_tool(FORECACHE, "coordinator", "shadow", "--base-url", url).strip() == "shadow"
            before = status(server)["counts"]
            play(server, "while-shadow", end=False)
            eventually(lambda: status(server)["counts"]["forecasts"] > before["forecasts"], "it goes on forecasting")
            assert status(server)["counts"].get("tables", 0) == before.get("tables", 0)
        finally:
            assert run_tool(FORECACHE, "coordinator", "on", "--base-url", url).strip() == "on"

    @pytest.mark.parametrize("body", [{"mode": "faster"}, {"mode": None}, {}, {"mode": ["on"]}])
    def test_another_mode_is_refused(self, server: Server, body: dict[str, Any]) -> None:
        reply = server.http.post("/v1/coordinator", json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "mode"
        assert "on, shadow, off" in reply.json()["error"]["message"]

    def test_a_workflow_that_is_not_known_is_not_found(self, server: Server) -> None:
        assert server.http.get("/v1/coordinator/workflows/nobody").json()["error"]["code"] == "workflow_not_found"
        assert server.http.get("/v1/coordinator/workflows?limit=0").status_code == 400


class TestDeaths:
    """A request never depends on the slow loop; what it knew is there again soon."""

    @pytest.mark.parametrize("deployment", ["CacheCoordinator", "Predictor"])
    def test_no_request_fails_and_plans_go_on(self, server: Server, deployment: str) -> None:
        play(server, f"kept-{deployment}", end=False)
        calls = Calls(server, f"under-{deployment}")
        calls.start()
        try:
            eventually(lambda: calls.made > 5, "calls are made")
            victim = replica_of(server, deployment)
            before = calls.made
            os.kill(victim.pid, signal.SIGKILL)
            eventually(lambda: calls.made > before + 5, "calls go on")
            eventually(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, "it is dead")

            def back() -> bool:
                try:
                    now = status(server)
                except httpx.HTTPError:
                    return False
                predictor = now.get("predictor") or {}
                fresh = all(one["heard_s_ago"] < 3 and one["plan"] for one in now.get("engines", ()))
                return len(now.get("engines", ())) == 2 and fresh and "error" not in predictor

            eventually(back, f"{deployment} is back and plans go on", RESUME_LIMIT_S)
            forecasts = status(server)["counts"].get("forecasts", 0)
            eventually(lambda: status(server)["counts"].get("forecasts", 0) > forecasts, "there are forecasts")
        finally:
            calls.stop()
        assert calls.failed == []
        assert calls.made > 10
        started = time.monotonic()
        assert set(play(server, f"after-{deployment}")) == {200}
        assert time.monotonic() - started < 30
