"""What the gate knows of a workflow, and of an engine's places."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from cache_actor.admission.shares import Claim, Tenant


@dataclass(slots=True)
class Member:
    """A workflow that has asked.

    Attributes:
        since: when it first asked: its place in the queue for as long as it lives.
        engine: where it lives; None before it was let in first, and when its engine is gone.
        inside: whether it counts, since `entered`, for which so many seconds were `charged`; `known`: it has counted.
        place_s: seconds for which it counted before it was paused.
        held: calls of it that wait, the first of them since `asked` with this `claim` and so many seconds expected;
            `running`: calls under way.
        idle_until: when others may have its place if no call runs.
        tokens, gap_s, remaining: of its context (None: nobody has said), forecast to its next call (seconds), forecast
            calls until it ends.
    """

    name: str
    tenant: Tenant
    since: float
    number: int
    engine: str | None = None
    inside: bool = False
    known: bool = False
    entered: float = 0.0
    charged: float = 0.0
    place_s: float = 0.0
    held: int = 0
    asked: float = 0.0
    claim: Claim = (0, 0.0, 0, "")
    expected_s: float | None = None
    running: int = 0
    idle_until: float = 0.0
    tokens: int | None = None
    gap_s: float = 0.0
    remaining: float = 1.0

    def pause_cost(self) -> tuple[float, int]:
        """What is lost if it is paused; the least is paused first: small contexts, long gaps, a far end. Of equals
        the latest comer, and last those of which nothing is known."""
        if self.tokens is None:
            return math.inf, -self.number
        return self.tokens / ((1.0 + self.gap_s) * max(1.0, self.remaining)), -self.number


@dataclass(slots=True)
class Room:
    """The places of one engine.

    Attributes:
        limit: how many there are; None: as many as are asked for.
        inside: who has one.
        over_since: since when more are in than there are places; None: they are not.
    """

    limit: int | None = None
    inside: dict[str, Member] = field(default_factory=dict)
    over_since: float | None = None
    _idle: list[tuple[float, int, str]] = field(default_factory=list)

    def free(self) -> float:
        """Places; less than 0 if more are in than there should be."""
        return float("inf") if self.limit is None else self.limit - len(self.inside)

    def used(self) -> int:
        """Places in use."""
        return len(self.inside) if self.limit is None else min(self.limit, len(self.inside))

    def take(self, member: Member) -> None:
        self.inside[member.name] = member

    def drop(self, member: Member) -> None:
        self.wake(member)
        self.inside.pop(member.name, None)

    def rest(self, member: Member, until: float) -> None:
        """It is between two calls, and others may have its place after `until`."""
        self.wake(member)
        member.idle_until = until
        insort(self._idle, (until, member.number, member.name))

    def wake(self, member: Member) -> None:
        """A call of it runs."""
        entry = (member.idle_until, member.number, member.name)
        place = bisect_left(self._idle, entry)
        if place < len(self._idle) and self._idle[place] == entry:
            del self._idle[place]

    def cheapest_idle(self, most: int) -> list[Member]:
        return heapq.nsmallest(most, (self.inside[name] for _, _, name in self._idle), key=Member.pause_cost)

    def longest_idle(self, needed: int, now: float) -> list[Member]:
        """So many whose places others may have; none if there are fewer."""
        if len(self._idle) < needed or self._idle[needed - 1][0] > now:
            return []
        return [self.inside[name] for _, _, name in self._idle[:needed]]


def roomiest(rooms: Mapping[str, Room]) -> str:
    """The engine with the most room, of equals the one with fewest in."""
    return min(rooms, key=lambda name: (-rooms[name].free(), len(rooms[name].inside), name))
