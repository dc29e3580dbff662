"""Where each call goes, for all who ask in this process: the ingress, and Ray Serve's router of the engines' handle.

The two run in threads of their own. What is decided is a `Router`'s; here are the engines that there are, the calls
that are on their way, and the clock.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cache_actor.snapshots import EngineSnapshot
from serving.calls import EngineCall
from serving.prompt_text import PromptLengths, texts_of
from serving.routing import Decision, RoutedCall, Router, make_router

# An engine that has failed a call gets none for so long, unless Serve says before that it is no more; twice as long
# each time that it fails its first call after that, but doubled at most so often.
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
        router: what decides.
        max_workflows: whose engines are remembered; the one longest without a call is forgotten first.
        clock: in seconds, that of the times in snapshots.

    Attributes:
        counts: decisions by their reasons; `rehomed` workflows.
    """

    def __init__(self, router: Router, max_workflows: int = 100_000, clock: Callable[[], float] = time.time) -> None:
        self._router = router
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

    def answered(self, call: EngineCall, prompt_tokens: int) -> Decision | None:
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
        self._router.set_engines(there)

    def _asked(self, call: EngineCall) -> tuple[RoutedCall, int]:
        """A call as routers are asked of it, and the characters of its prompt."""
        characters = tokens = 0
        pieces = []
        for text, more in texts_of(call.body):
            characters += len(text)
            tokens += more
            if self._router.reads_prompts:
                name = f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
                pieces.append((name, self._lengths.tokens(len(text)) + more))
        identity = call.identity
        return RoutedCall(
            identity.workflow,
            identity.agent,
            self._lengths.tokens(characters) + tokens,
            identity.parent,
            call.anchor,
            identity.source != "inferred",
            tuple(pieces),
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
            _TABLES[table] = RoutingTable(make_router(router, **(parameters or {})), max_workflows)
        return _TABLES[table]
