"""Who leaves an engine that is overloaded, draining or gone: whole workflows, one at a time, most idle first. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cache_actor.snapshots import EngineSnapshot


@dataclass(frozen=True, slots=True)
class Move:
    """A workflow's next call goes to another engine."""

    workflow: str
    source: str
    target: str
    why: Literal["overload", "draining", "gone"]


@dataclass(slots=True)
class _Life:
    engine: str
    running: int = 0


class Rehoming:
    """Decides moves, and says when old copies may go.

    An engine is overloaded when its pressure is above `high`; it is left for one whose pressure is lower by `gap` even
    with the workflow that comes. From an engine that drains or is gone all leave, for the one with the least pressure.
    Of each engine one move at a time is open: until the workflow's next call has been answered where it went, the
    workflow has ended, or, since an idle workflow may be so for long, `patience_s` have passed.

    Args:
        high, gap: in units of a device pool.
        patience_s: seconds.
        max_workflows: that are known; beyond it the most idle is forgotten.
    """

    def __init__(
        self, high: float = 1.75, gap: float = 1.0, patience_s: float = 10.0, max_workflows: int = 100_000
    ) -> None:
        self._high = high
        self._gap = gap
        self._patience = patience_s
        self._max = max_workflows
        self._lives: OrderedDict[str, _Life] = OrderedDict()  # the most idle first
        self._moved: dict[str, Move] = {}  # whose old copies wait for the first answer from elsewhere
        self._open: dict[str, tuple[str, float]] = {}  # of each engine that is left: who leaves, and since when
        self._gone: dict[str, None] = {}

    def called(self, workflow: str, engine: str) -> None:
        """A call goes to an engine."""
        life = self._lives.setdefault(workflow, _Life(engine))
        life.engine = engine
        life.running += 1
        self._lives.move_to_end(workflow)
        while len(self._lives) > self._max:
            self.over(next(iter(self._lives)))

    def answered(self, workflow: str, engine: str) -> str | None:
        """A call is over. The engine whose copy of the workflow may be retired now, if it has moved."""
        life = self._lives.get(workflow)
        if life is None:
            return None
        life.running = max(0, life.running - 1)
        self._lives.move_to_end(workflow)
        move = self._moved.get(workflow)
        if move is None or engine != move.target:
            return None
        self._settle(workflow)
        return None if move.why == "gone" else move.source

    def left(self, workflow: str, source: str, target: str) -> None:
        """A workflow leaves its engine with the call that comes next."""
        self._settle(workflow)
        self._moved[workflow] = Move(workflow, source, target, "overload")

    def target(self, workflow: str) -> str | None:
        """Where the next call of a workflow that moves goes."""
        move = self._moved.get(workflow)
        return None if move is None else move.target

    def over(self, workflow: str) -> None:
        """A workflow has ended."""
        self._lives.pop(workflow, None)
        self._settle(workflow)

    def lost(self, engine: str) -> None:
        """An engine is gone."""
        self._gone[engine] = None
        for life in self._lives.values():
            if life.engine == engine:
                life.running = 0
        for workflow in [name for name, move in self._moved.items() if engine in (move.source, move.target)]:
            self._settle(workflow)

    def came(self, engine: str) -> None:
        """An engine is there, perhaps again."""
        self._gone.pop(engine, None)

    def moves(self, snapshots: Sequence[EngineSnapshot], now: float) -> list[Move]:
        """The moves that begin now, at most one from each engine; each is to be done before this is asked again."""
        self._expire(now)
        context = mean_context(snapshots)
        needed = {one.engine: float(one.needed_tokens) for one in snapshots}
        for move in self._moved.values():  # engines do not know of it before the call
            for engine, tokens in ((move.source, -context), (move.target, context)):
                if engine in needed:
                    needed[engine] += tokens
        found: list[Move] = []
        for source in sorted({*needed, *self._gone} - self._open.keys()):
            leaves = self._move(source, snapshots, needed, context)
            if leaves is not None:
                found.append(leaves)
                self._moved[leaves.workflow] = leaves
                self._open[source] = leaves.workflow, now
                self._lives[leaves.workflow].engine = leaves.target
        return found

    def _move(
        self, source: str, snapshots: Sequence[EngineSnapshot], needed: dict[str, float], context: float
    ) -> Move | None:
        known = {one.engine: one for one in snapshots}
        workflow = next((name for name, one in self._lives.items() if one.engine == source and not one.running), None)
        targets = [one for one in snapshots if one.engine != source and not one.draining]
        if workflow is None or not targets:
            return None
        target = min(targets, key=lambda one: (needed[one.engine] / max(1, one.capacity_tokens), one.engine))
        here = known.get(source)
        if source in self._gone or here is None:
            move = Move(workflow, source, target.engine, "gone")
        elif here.draining:
            move = Move(workflow, source, target.engine, "draining")
        else:
            pressure = needed[source] / max(1, here.capacity_tokens)
            there = (needed[target.engine] + context) / max(1, target.capacity_tokens)
            if pressure <= self._high or pressure - there < self._gap:
                return None
            move = Move(workflow, source, target.engine, "overload")
        needed[target.engine] += context
        return move

    def _settle(self, workflow: str) -> None:
        move = self._moved.pop(workflow, None)
        if move is not None and self._open.get(move.source, ("", 0.0))[0] == workflow:
            del self._open[move.source]

    def _expire(self, now: float) -> None:
        self._open = {engine: one for engine, one in self._open.items() if now - one[1] < self._patience}


def mean_context(snapshots: Sequence[EngineSnapshot]) -> float:
    """Of a workflow, in tokens; 0 if there are none."""
    workflows = sum(len(one.workflows) for one in snapshots)
    return sum(one.needed_tokens for one in snapshots) / workflows if workflows else 0.0
