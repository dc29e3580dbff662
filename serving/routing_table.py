"""Where each call goes, for all who ask in this process: the ingress, and Ray Serve's router of the engines' handle.

The two run in threads of their own. What is decided is a `Router`'s; here are the engines that there are, the calls
that are on their way, and the clock.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cache_actor.snapshots import EngineSnapshot
from serving.calls import EngineCall
from serving.prompt_text import PromptLengths, parts_of, pieces_of
from serving.routing import Decision, RoutedCall, Router, make_router

# An engine that has failed a call gets none for so long, in seconds, unless Serve says before that it is no more; twice
# as long each time that it fails its first call after that, but doubled at most so often.
LOST_S = 5.0
LOST_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class _Flight:
    workflow: str
    decision: Decision
    characters: int


class RoutingTable:
    """The engines of this process's handle, the workflows that live on them, and the calls in flight. Thread-safe.

    Args:
        router, parameters: what decides, see `make_router`.
        max_workflows: whose engines are remembered; the one longest without a call is forgotten first.
        clock: in seconds, that of the times in snapshots.

    Attributes:
        counts: decisions by their reasons; `rehomed` workflows.

    Raises:
        ValueError: see `make_router`.
    """

    def __init__(
        self,
        router: str = "workflow",
        parameters: Mapping[str, Any] | None = None,
        max_workflows: int = 100_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._parameters = router, dict(parameters or {})
        self._router: Router = make_router(router, **self._parameters)
        self._snapshots: dict[str, EngineSnapshot] = {}  # the newest of each engine that there is
        self._max_workflows = max_workflows
        self._clock = clock
        self._lock = threading.RLock()
        self._named: frozenset[str] = frozenset()
        self._lost: dict[str, float] = {}  # until when
        self._failures: Counter[str] = Counter()  # of an engine since it has last answered
        self._running: Counter[str] = Counter()  # of each engine that there is
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._flights: dict[str, _Flight | None] = {}  # calls that are open; None: not on their way to an engine
        self._lengths = PromptLengths()
        self.counts: Counter[str] = Counter()

    def switch(self, router: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Another router decides from now on. Workflows stay where they live, as far as the new one cares.

        Raises:
            ValueError: see `make_router`; the old one stays.
        """
        chosen = make_router(router, **(parameters or {}))
        with self._lock:
            self._renew()
            chosen.set_engines(self._running)
            for snapshot in self._snapshots.values():
                chosen.see(snapshot)
            for workflow, engine in self._homes.items():
                chosen.adopt(workflow, engine)
            self._router, self._name, self._parameters = chosen, router, dict(parameters or {})

    def status(self) -> dict[str, Any]:
        """For people and for `GET /v1/router`: a JSON object. Ages are in seconds."""
        with self._lock:
            load, now = self.load(), self._clock()
            return {
                "name": self._name,
                "parameters": self._parameters,
                "engines": [
                    {
                        "id": engine,
                        "workflows": load[engine],
                        "running": self._running[engine],
                        "draining": (seen := self._snapshots.get(engine)) is not None and seen.draining,
                        "snapshot_age_s": None if seen is None else round(now - seen.at, 3),
                    }
                    for engine in self.engines()
                ],
                "counts": dict(self.counts),
            }

    def set_engines(self, engines: Iterable[str]) -> None:
        """The engines that exist, as Serve says."""
        with self._lock:
            self._named = frozenset(engines)
            self._lost = {engine: until for engine, until in self._lost.items() if engine in self._named}
            self._failures = Counter({engine: self._failures[engine] for engine in self._failures.keys() & self._named})
            self._renew()

    def drop_engine(self, engine: str) -> None:
        """An engine has failed a call, or cannot be reached: it gets none for a while."""
        with self._lock:
            self._renew()
            if engine in self._running:  # or it was dropped before, by another call that it has failed
                self._lost[engine] = self._clock() + LOST_S * 2 ** min(self._failures[engine], LOST_DOUBLINGS)
                self._failures[engine] += 1
                self._renew()

    def engines(self) -> list[str]:
        """Those that calls can go to."""
        with self._lock:
            self._renew()
            return sorted(self._running)

    def load(self) -> dict[str, int]:
        """Living workflows by engine."""
        with self._lock:
            self._renew()
            counted = Counter(self._homes.values())
            return {engine: counted[engine] for engine in self._running}

    def engine_of(self, workflow: str) -> str | None:
        """Where its latest call went, if that engine is still there."""
        with self._lock:
            self._renew()
            return self._homes.get(workflow)

    def see(self, snapshots: Iterable[EngineSnapshot]) -> None:
        """Snapshots have come."""
        with self._lock:
            for snapshot in snapshots:
                if snapshot.engine in self._named:
                    self._snapshots[snapshot.engine] = snapshot
                self._router.see(snapshot)

    def decide(self, call: EngineCall) -> Decision | None:
        """Where a call goes: the same answer until `over`, as long as that engine is there; None without engines."""
        with self._lock:
            self._renew()
            if (flight := self._flights.setdefault(call.rid, None)) is not None:
                return flight.decision
            asked, characters = self._asked(call)
            decision = self._router.route(asked, self._running, self._clock())
            if decision is None:
                return None
            self._flights[call.rid] = _Flight(asked.workflow, decision, characters)
            self._running[decision.engine] += 1
            self.counts[decision.why] += 1
            self._homes[asked.workflow] = decision.engine
            self._homes.move_to_end(asked.workflow)
            if len(self._homes) > self._max_workflows:
                self._homes.popitem(last=False)
            return decision

    def decide_again(self, call: EngineCall) -> Decision | None:
        """The same of a call for which `decide` was asked before; None once it is over. Serve may still look for an
        engine when a client has left, and what it then began nobody would end."""
        with self._lock:
            return self.decide(call) if call.rid in self._flights else None

    def lost(self, call: EngineCall) -> str | None:
        """A call was failed by its engine, which is dropped and returned; None if it was dropped before."""
        with self._lock:
            if (flight := self._flights.get(call.rid)) is None:
                return None
            self.drop_engine(flight.decision.engine)
            return flight.decision.engine

    def begun(self, call: EngineCall, prompt_tokens: int) -> Decision | None:
        """An engine has begun to answer a call, and counted the tokens of its prompt; why it was sent there. None: the
        engine was dropped meanwhile."""
        with self._lock:
            if (flight := self._flights.get(call.rid)) is None:
                return None
            self._lengths.counted(flight.characters, prompt_tokens)
            self._failures.pop(flight.decision.engine, None)
            return flight.decision

    def retried(self) -> None:
        """A call is sent once more."""
        with self._lock:
            self.counts["retried"] += 1

    def totals(self) -> Counter[str]:
        """The counts as they are now."""
        with self._lock:
            return self.counts.copy()

    def over(self, call: EngineCall) -> None:
        """A call has been answered, or never will be."""
        with self._lock:
            flight = self._flights.pop(call.rid, None)
            if flight is not None:
                self._running[flight.decision.engine] -= 1
                self._router.answered(flight.workflow, flight.decision.engine)

    def release(self, workflow: str) -> None:
        """A workflow is over."""
        with self._lock:
            self._homes.pop(workflow, None)
            self._router.release(workflow)

    def rehome(self) -> None:
        """To be called a few times a second: idle workflows may leave engines that are overloaded or draining."""
        with self._lock:
            self.counts["rehomed"] += len(self._router.rehome(self._clock()))

    def _renew(self) -> None:
        """The engines that there are may be others now."""
        if self._lost:
            now = self._clock()
            self._lost = {engine: until for engine, until in self._lost.items() if now < until}
        there = self._named - self._lost.keys()
        if there == self._running.keys():
            return
        self._running = Counter({engine: self._running[engine] for engine in sorted(there)})
        self._homes = OrderedDict((one, engine) for one, engine in self._homes.items() if engine in there)
        for rid, flight in self._flights.items():
            if flight is not None and flight.decision.engine not in there:
                self._flights[rid] = None
        self._snapshots = {engine: one for engine, one in self._snapshots.items() if engine in self._named}
        self._router.set_engines(there)

    def _asked(self, call: EngineCall) -> tuple[RoutedCall, int]:
        """A call as routers are asked of it, and the characters of its prompt."""
        parts = list(parts_of(call.body))
        characters = sum(len(part) for part in parts if isinstance(part, str))
        tokens = sum(len(part) for part in parts if isinstance(part, list))
        pieces = tuple(pieces_of(parts)) if self._router.reads_prompts else ()
        identity = call.identity
        return RoutedCall(
            identity.workflow,
            identity.agent,
            self._lengths.tokens(characters) + tokens,
            identity.parent,
            call.anchor,
            identity.source != "inferred",
            pieces,
            call.wanted,
        ), characters


_TABLES: dict[str, RoutingTable] = {}
_TABLES_LOCK = threading.Lock()


def routing_table(
    table: str, router: str = "workflow", parameters: Mapping[str, Any] | None = None, max_workflows: int = 100_000
) -> RoutingTable:
    """The table of this process that is called so; made at the first call, whoever makes it.

    Raises:
        ValueError: see `make_router`.
    """
    with _TABLES_LOCK:
        if table not in _TABLES:
            _TABLES[table] = RoutingTable(router, parameters, max_workflows)
        return _TABLES[table]
