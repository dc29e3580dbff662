"""Which engine a workflow lives on: the decision behind the session hash. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set

from serving.rendezvous import weight


class Placement:
    """Where each workflow lives.

    A new workflow goes to the first engine of its rendezvous order that has room: no engine gets more than
    `overload_bound` times the mean number of live workflows, rounded up (rendezvous hashing with bounded loads). It
    stays there until it is released or the engine goes; a new engine moves nobody, so that an engine may be above
    the bound after others' workflows have ended, and then gets none. An untagged workflow is placed by the hash of
    its agent's anchor, so that equal anchors share a cache, and without an anchor on the least loaded engine that
    has room.

    Args:
        overload_bound: at least 1.
        max_workflows: placements that are remembered; the longest unused is forgotten first.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(self, overload_bound: float = 1.25, max_workflows: int = 100_000) -> None:
        for name, value in (("overload_bound", overload_bound), ("max_workflows", max_workflows)):
            if not value >= 1:
                raise ValueError(f"{name} is {value:g}; give at least 1")
        self._bound = overload_bound
        self._max = max_workflows
        self._engine_of: OrderedDict[str, str] = OrderedDict()
        self._load: dict[str, int] = {}

    def engines(self) -> list[str]:
        return list(self._load)

    def load(self) -> dict[str, int]:
        """Live workflows by engine."""
        return dict(self._load)

    def engine_of(self, workflow: str) -> str | None:
        return self._engine_of.get(workflow)

    def set_engines(self, engines: Iterable[str]) -> None:
        """The engines that exist now. The workflows of one that is gone are placed anew at their next call."""
        wanted = set(engines)
        self._keep(wanted)

    def drop_engine(self, engine: str) -> None:
        self._keep(self._load.keys() - {engine})

    def release(self, workflow: str) -> None:
        """The workflow has ended: it no longer counts, and may be placed elsewhere if it comes back."""
        engine = self._engine_of.pop(workflow, None)
        if engine is not None:
            self._load[engine] -= 1

    def adopt(self, workflow: str, engine: str) -> None:
        """The workflow lives on that engine, whatever its hash says and however many are there; if there is such."""
        if engine in self._load:
            self.release(workflow)
            self.place(workflow, None, True, wanted=engine)

    def place(
        self,
        workflow: str,
        anchor: str | None,
        tagged: bool,
        calls: Mapping[str, int] | None = None,
        wanted: str | None = None,
    ) -> str | None:
        """The engine for a call of `workflow`; None when there is no engine.

        Args:
            workflow: its id.
            anchor: hash of the agent's anchor, if it has one.
            tagged: whether the client named the workflow.
            calls: calls in flight by engine, for the least loaded; an engine that is not in it has none.
            wanted: where it is to go if it has no engine yet, whatever else is said here, if that one is there.
        """
        engine = self._engine_of.get(workflow)
        if engine is None and self._load:
            engine = wanted if wanted in self._load else self._choose(workflow if tagged else anchor, calls or {})
            self._engine_of[workflow] = engine
            self._load[engine] += 1
            self._forget_oldest()
        if engine is not None:
            self._engine_of.move_to_end(workflow)
        return engine

    def _keep(self, wanted: Set[str]) -> None:
        if wanted == self._load.keys():
            return
        self._engine_of = OrderedDict((w, e) for w, e in self._engine_of.items() if e in wanted)
        self._load = dict.fromkeys(sorted(wanted), 0)
        for engine in self._engine_of.values():
            self._load[engine] += 1

    def _choose(self, key: str | None, calls: Mapping[str, int]) -> str:
        live = len(self._engine_of) + 1
        most = math.ceil(self._bound * live / len(self._load))
        with_room = [engine for engine, load in self._load.items() if load < most]
        if key is None:
            return min(with_room, key=lambda engine: (calls.get(engine, 0), self._load[engine], engine))
        return max(with_room, key=lambda engine: weight(key, engine))

    def _forget_oldest(self) -> None:
        while len(self._engine_of) > self._max:
            _, engine = self._engine_of.popitem(last=False)
            self._load[engine] -= 1
