"""Who is in and who waits, on all engines of one ingress. Pure: times are parameters, in seconds of one clock.

A workflow is *in* from the moment that its first call may go until it is over; what is in counts against the limit of
its engine. When more are in than the limit says, the cheapest of those that are between two calls are *paused*: they
count no more, and their next call waits for a place as if it were their first, but before all that came later.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Member:
    """A workflow that has asked.

    Attributes:
        since: when it first asked: its place in the queue for as long as it lives.
        engine: where it lives, None before it was let in first.
        inside: whether it counts. `held` calls of it wait, `running` of them are under way.
        tokens, gap_s, remaining: of its context, forecast to its next call (seconds), forecast calls until it ends.
    """

    name: str
    since: float
    number: int
    engine: str | None = None
    inside: bool = False
    held: int = 0
    running: int = 0
    tokens: int = 0
    gap_s: float = 0.0
    remaining: float = 1.0

    def pause_cost(self) -> tuple[float, int]:
        """What is lost if it is paused; the least is paused first: small contexts, long gaps, a far end. Of equals
        the latest comer."""
        return self.tokens / ((1.0 + self.gap_s) * max(1.0, self.remaining)), -self.number


@dataclass(slots=True)
class _Room:
    limit: int | None = None
    inside: dict[str, None] = field(default_factory=dict)

    def free(self) -> float:
        return float("inf") if self.limit is None else self.limit - len(self.inside)


class Gate:
    """Lets workflows in as far as the engines' limits allow. Without engines, and without limits, everybody goes."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}
        self._members: dict[str, _Member] = {}
        self._queue: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()

    def set_limits(self, limits: Mapping[str, int | None]) -> None:
        """The engines that there are, each with its limit; None: no limit. Workflows of an engine that is gone stay
        in, and count nowhere until they are placed anew."""
        for engine in self._rooms.keys() - limits.keys():
            for name in self._rooms.pop(engine).inside:
                self._members[name].engine = None
        for engine, limit in limits.items():
            self._rooms.setdefault(engine, _Room()).limit = limit
        for room in self._rooms.values():
            self._pause(room)

    def ask(self, workflow: str, now: float) -> str | None:
        """A call of a workflow has come. The engine to which it goes at once, "" if that is not for the gate to say,
        None if it waits until `admitted` names it."""
        member = self._members.get(workflow)
        if member is None:
            member = self._members[workflow] = _Member(workflow, now, next(self._numbers))
        if not member.inside and not self._enter(member):
            member.held += 1
            if member.held == 1:
                heapq.heappush(self._queue, (member.since, member.number, workflow))
            return None
        member.running += 1
        return member.engine or ""

    def admitted(self) -> list[tuple[str, str]]:
        """The workflows whose held calls go now, all of them at once, and the engine of each."""
        came: list[tuple[str, str]] = []
        blocked: list[tuple[float, int, str]] = []
        while (
            self._queue and any(room.free() >= 1 for room in self._rooms.values()) or (self._queue and not self._rooms)
        ):
            entry = heapq.heappop(self._queue)
            member = self._members.get(entry[2])
            if member is None or not member.held or member.number != entry[1]:
                continue
            if not member.inside and not self._enter(member, queue=False):
                blocked.append(entry)  # its own engine is full; others are not
                continue
            member.running += member.held
            member.held = 0
            came.append((member.name, member.engine or ""))
        for entry in blocked:
            heapq.heappush(self._queue, entry)
        return came

    def placed(self, workflow: str, engine: str) -> None:
        """A workflow that is in lives on an engine: what the router made of the gate's word."""
        member = self._members.get(workflow)
        if member is None or not member.inside or member.engine == engine:
            return
        if member.engine in self._rooms:
            self._rooms[member.engine].inside.pop(workflow, None)
        member.engine = engine
        self._rooms.setdefault(engine, _Room()).inside[workflow] = None

    def note(self, workflow: str, tokens: int, gap_s: float = 0.0, remaining: float = 1.0) -> None:
        """What is known of a workflow: tokens of its context, seconds to its next call, calls until it ends."""
        member = self._members.get(workflow)
        if member is not None:
            member.tokens, member.gap_s, member.remaining = tokens, gap_s, remaining

    def done(self, workflow: str) -> None:
        """A call that went is over, in whatever way."""
        member = self._members.get(workflow)
        if member is None:
            return
        member.running = max(0, member.running - 1)
        if member.engine in self._rooms:
            self._pause(self._rooms[member.engine])

    def left(self, workflow: str) -> None:
        """The client of a held call has gone."""
        member = self._members.get(workflow)
        if member is not None and member.held:
            member.held -= 1
            if not member.held and member.engine is None and not member.inside:
                del self._members[workflow]

    def over(self, workflow: str) -> None:
        """A workflow has ended: its place is free. Calls of it that are held go with it."""
        member = self._members.pop(workflow, None)
        if member is not None and member.engine in self._rooms:
            self._rooms[member.engine].inside.pop(workflow, None)

    def inside(self, engine: str) -> Iterable[str]:
        """The workflows that count against an engine's limit."""
        return self._rooms[engine].inside.keys() if engine in self._rooms else ()

    @property
    def held(self) -> int:
        """Workflows with a call that waits."""
        return sum(1 for member in self._members.values() if member.held)

    def _enter(self, member: _Member, queue: bool = True) -> bool:
        """Lets a workflow in if there is room, and nobody with an older claim to it waits (`queue`)."""
        engine = self._engine_for(member)
        if engine is None:
            return not self._rooms and self._let_in(member, None)
        if self._rooms[engine].free() < 1 or (queue and self._somebody_waits(member)):
            return False
        return self._let_in(member, engine)

    def _let_in(self, member: _Member, engine: str | None) -> bool:
        member.inside = True
        member.engine = engine
        if engine is not None:
            self._rooms[engine].inside[member.name] = None
        return True

    def _engine_for(self, member: _Member) -> str | None:
        """Where its context is; for a new one the engine with the most room, of equals the one with fewest in."""
        if member.engine in self._rooms:
            return member.engine
        if not self._rooms:
            return None
        return min(self._rooms, key=lambda name: (-self._rooms[name].free(), len(self._rooms[name].inside), name))

    def _somebody_waits(self, member: _Member) -> bool:
        while self._queue:
            since, number, name = self._queue[0]
            head = self._members.get(name)
            if head is not None and head.held and head.number == number:
                return (since, number) < (member.since, member.number)
            heapq.heappop(self._queue)
        return False

    def _pause(self, room: _Room) -> None:
        excess = -room.free()
        if excess < 1:
            return
        idle = [self._members[name] for name in room.inside if not self._members[name].running]
        for member in sorted(idle, key=_Member.pause_cost)[: int(excess)]:
            member.inside = False
            del room.inside[member.name]
