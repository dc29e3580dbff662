"""The shared server with a limit that is set by hand, and no room left."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
from running_server import Server, eventually

_NUMBERS = itertools.count()


class Limited:
    """The shared server with one place on each engine, both taken."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self._pool = pool
        self.name = f"admission-{next(_NUMBERS)}"
        for workflow in server.http.get("/v1/workflows").json()["data"]:
            server.http.delete(f"/v1/workflows/{workflow['id']}")
        self.switch(1)
        self.inside = [f"{self.name}-in-{number}" for number in range(2)]
        replies = [self.call(workflow) for workflow in self.inside]
        self.engines = [reply.headers["x-engine-id"] for reply in replies]

    def switch(self, mode: str | int) -> None:
        assert self.server.http.post("/v1/admission", json={"mode": mode}).status_code == 200

    def call(self, workflow: str) -> httpx.Response:
        return self.server.chat(headers={"x-workflow-id": workflow})

    def call_later(self, workflow: str) -> Future[httpx.Response]:
        """A call that is held: it waits for a place when this returns."""
        before = self.status()["held_calls"]
        call = self._pool.submit(self.call, workflow)
        eventually(lambda: self.status()["held_calls"] == before + 1, "the call is held", 10, every_s=0.05)
        return call

    def end(self, workflow: str) -> None:
        self.server.http.delete(f"/v1/workflows/{workflow}")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.server.http.get("/v1/admission").json()
        return status
