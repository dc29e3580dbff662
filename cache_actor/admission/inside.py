"""Who is known and who is in, and on which engine. Pure: times are parameters, in seconds of one clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from cache_actor.admission.room import Member, Room, roomiest
from cache_actor.admission.shares import Mean, Shares, Tenant


class Inside:
    """The workflows that the gate knows, the places of the engines, and who has one.

    Args:
        shares: what tenants are charged for their places.
        moved: told of each tenant that was charged.

    Attributes:
        members: those that have been in or wait, by name.
        rooms: by engine.
        paused: workflows that have had a place, and get another when they call again, oldest pause first.
    """

    def __init__(self, shares: Shares, moved: Callable[[Tenant], None]) -> None:
        self._shares = shares
        self._moved = moved
        self._numbers = itertools.count()
        self._needs = Mean()  # seconds in places that a workflow takes, pauses left out
        self.members: dict[str, Member] = {}
        self.rooms: dict[str, Room] = {}
        self.paused: dict[str, None] = {}

    def set_limits(self, limits: Mapping[str, int | None]) -> set[str]:
        """The engines that there are. Those that are gone: what is paused or in there is at home nowhere."""
        gone = self.rooms.keys() - limits.keys()
        for engine in gone:
            del self.rooms[engine]
        for member in self.members.values() if gone else ():
            if member.engine in gone:
                member.engine = None
        for engine, limit in limits.items():
            self.rooms.setdefault(engine, Room()).limit = limit
        return gone

    def stranger(self, workflow: str, tenant: str, now: float) -> Member:
        """A workflow that has just come; it is forgotten unless it is let in or `remember` is called."""
        return Member(workflow, self._shares.tenant(tenant), now, next(self._numbers))

    def remember(self, member: Member) -> None:
        if member.name not in self.members:
            self.members[member.name] = member
            member.tenant.members += 1

    def forget(self, member: Member) -> None:
        del self.members[member.name]
        self.paused.pop(member.name, None)
        member.tenant.members -= 1

    def engine_for(self, member: Member) -> str | None:
        """Where its context is; for a new one the engine with the most room. None: there is no engine."""
        return member.engine or (roomiest(self.rooms) if self.rooms else None)

    def let_in(self, member: Member, engine: str | None, now: float) -> None:
        self.remember(member)
        self.paused.pop(member.name, None)
        member.inside = member.known = True
        member.engine = engine
        member.entered = now
        member.charged = self._shares.charge(member.tenant)
        self._moved(member.tenant)
        if engine is not None:
            self.rooms[engine].take(member)

    def place(self, member: Member, engine: str) -> None:
        """It is in, and lives on this engine from now on. On one of which `set_limits` has not told, or that is gone,
        it counts nowhere until it is placed anew."""
        if member.engine is not None:
            self.rooms[member.engine].drop(member)
        member.engine = None
        if (room := self.rooms.get(engine)) is None:
            return
        member.engine = engine
        room.take(member)
        if not member.running:
            room.rest(member, member.idle_until)

    def pause(self, member: Member, now: float) -> None:
        """It loses its place between two calls, and will want it back."""
        self._leave(member, now)
        self.paused[member.name] = None

    def give_up(self, member: Member, now: float) -> None:
        """It loses its place between two calls, and may never call again."""
        self.pause(member, now)
        self._learn(member)

    def over(self, member: Member, now: float) -> None:
        """It has ended, whether it was in or not."""
        if member.inside:
            self._leave(member, now)
            self._learn(member)
        elif member.place_s:  # it was paused
            self._learn(member)
        self.forget(member)

    def wait_s(self, member: Member, ahead: int) -> float | None:
        """Until so many and this one have found a place, at the rate at which those that are in are seen to be over;
        None: nobody knows."""
        rooms = self.rooms.values() if member.engine is None else (self.rooms[member.engine],)
        places = sum(room.used() for room in rooms)
        need_s = self._needs.value
        return None if need_s is None or not places else (ahead + 1) * need_s / places

    def _leave(self, member: Member, now: float) -> None:
        member.inside = False
        if member.engine is not None:
            self.rooms[member.engine].drop(member)
        stay_s = now - member.entered
        self._shares.settle(member.tenant, member.charged, stay_s)
        self._moved(member.tenant)
        member.place_s += stay_s

    def _learn(self, member: Member) -> None:
        """It needs no place any more, as far as anybody knows."""
        self._needs.take(member.place_s)
        member.place_s = 0.0
