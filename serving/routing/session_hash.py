"""Version one: rendezvous hashing with bounded loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from serving.routing.base import Decision, RoutedCall, Router, register
from serving.routing.placement import Placement


@register("session-hash")
class SessionHash(Router):
    """A workflow lives where the hash of its id says, with bounded loads, and stays there; see `Placement`."""

    def __init__(self, overload_bound: float = 1.25, max_workflows: int = 100_000) -> None:
        self._placement = Placement(overload_bound, max_workflows)

    def set_engines(self, engines: Iterable[str]) -> None:
        self._placement.set_engines(engines)

    def drop_engine(self, engine: str) -> None:
        self._placement.drop_engine(engine)

    def route(self, call: RoutedCall, running: Mapping[str, int], now: float) -> Decision | None:
        known = self._placement.engine_of(call.workflow)
        engine = self._placement.place(call.workflow, call.anchor, call.tagged, running, call.wanted)
        if engine is None:
            return None
        return Decision(engine, "sticky" if engine == known else "admitted" if engine == call.wanted else "hash")

    def adopt(self, workflow: str, engine: str) -> None:
        self._placement.adopt(workflow, engine)

    def release(self, workflow: str) -> None:
        self._placement.release(workflow)
