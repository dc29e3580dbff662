"""Who is in and who waits, on all engines of one ingress. Pure: times are parameters, in seconds of one clock.

A workflow is *in* from the moment that its first call may go until it is over; what is in counts against the limit of
its engine. When more are in than the limit says, the cheapest of those that are between two calls are *paused*: they
count no more, and their next call waits for a place as if it were their first, but before those of its tenant that
came later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from cache_actor.admission.bounds import Bounds, Queued, Refused
from cache_actor.admission.inside import Inside
from cache_actor.admission.queue import Queue
from cache_actor.admission.room import Member, Room, roomiest
from cache_actor.admission.shares import Claim, Shares, Tenant
from cache_actor.admission_messages import MAX_GATE_EVENTS, GateEvent


class Gate:
    """Lets workflows in as far as the engines' limits allow. Without engines, and without limits, everybody goes.

    Attributes:
        counts: what has happened: `held`, `let_in`, `overdue` (of these those let in beyond a limit, having waited for
            `max_wait_s`), `refused_full`, `refused_wait`, `paused`, `gave_up` (idle ones whose place another got).
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._shares = Shares(self._bounds.weights)
        self._queue = Queue(self._shares)
        self._inside = Inside(self._shares, self._queue.moved)
        self._members = self._inside.members
        self._rooms = self._inside.rooms
        self._now = 0.0
        self._events: deque[GateEvent] = deque(maxlen=MAX_GATE_EVENTS)
        self.counts: Counter[str] = Counter()

    def set_limits(self, limits: Mapping[str, int | None], now: float | None = None) -> None:
        """The engines that there are, each with its limit; None: no limit. Workflows of an engine that is gone stay
        in, and count nowhere until they are placed anew."""
        self._clock(now)
        for engine in self._inside.set_limits(limits):
            self._queue.close(engine)
        for room in self._rooms.values():
            self._pause(room)

    def ask(self, workflow: str, now: float, tenant: str = "", priority: int = 0, parent: str = "") -> str | None:
        """A call of a workflow has come. The engine to which it goes at once, "" if that is not for the gate to say,
        None if it waits until `admitted` names it.

        Args:
            tenant: whose it is, which is settled by a workflow's first call.
            priority: among those of the tenant that wait, higher first.
            parent: the workflow that has started this one. If that one is in, so is this one, whatever the limit: the
                two would wait for each other. If it is paused, this one waits as if it had come with it.

        Raises:
            Refused: it may not wait. Only a workflow that has never been in is ever refused.
        """
        self._clock(now)
        member = self._members.get(workflow)
        if member is None:
            member = self._inside.stranger(workflow, tenant, self._now)
            if (starter := self._members.get(parent)) is not None:
                member.since = starter.since
                if starter.inside:
                    self._inside.let_in(member, self._inside.engine_for(member), self._now)
            elif parent and not self._bounds.alone:
                self._inside.let_in(member, self._inside.engine_for(member), self._now)
        if not member.inside and not self._enter(member):
            self._hold(member, priority)
            return None
        member.running += 1
        if member.engine is None:
            return ""
        self._rooms[member.engine].wake(member)
        return member.engine

    def admitted(self, now: float | None = None, overdue: bool = False) -> list[tuple[str, str]]:
        """The workflows whose held calls go now, all of them at once, and the engine of each. To be asked after
        whatever may have freed a place, and now and then for those who have waited too long. `overdue`: only these."""
        self._clock(now)
        for room in self._rooms.values():
            self._pause(room)
        came: list[tuple[str, str]] = []
        while self._queue and (member := self._next(overdue)) is not None:
            came.append((member.name, member.engine or ""))
        return came

    def placed(self, workflow: str, engine: str) -> None:
        """A workflow that is in lives on an engine: what the router made of the gate's word. On one of which
        `set_limits` has not told, or that is gone, it counts nowhere until it is placed anew."""
        member = self._members.get(workflow)
        if member is not None and member.inside and member.engine != engine:
            self._inside.place(member, engine)

    def note(self, workflow: str, tokens: int, gap_s: float = 0.0, remaining: float = 1.0) -> None:
        """What is known of a workflow: tokens of its context, seconds to its next call, calls until it ends."""
        member = self._members.get(workflow)
        if member is not None:
            member.tokens, member.gap_s, member.remaining = tokens, gap_s, remaining

    def done(self, workflow: str, now: float | None = None, lasting: bool = True) -> None:
        """A call that went is over, in whatever way. `lasting`: another is to be expected; otherwise the workflow's
        place goes to the next who waits for it."""
        self._clock(now)
        member = self._members.get(workflow)
        if member is None:
            return
        member.running = max(0, member.running - 1)
        idle_until = self._now + (self._bounds.idle_s if lasting else 0.0)
        if not member.inside or member.engine is None:
            member.idle_until = idle_until
            return
        room = self._rooms[member.engine]
        if not member.running:
            room.rest(member, idle_until)
        self._pause(room)

    def left(self, workflow: str) -> None:
        """The client of a held call has gone."""
        member = self._members.get(workflow)
        if member is None or not member.held:
            return
        if member.held > 1:
            member.held -= 1
            self._queue.new_calls -= not member.known
            return
        self._queue.remove(member)
        member.held = 0
        if not member.known:
            self._inside.forget(member)

    def over(self, workflow: str, now: float | None = None) -> None:
        """A workflow has ended: its place is free. Calls of it that are held go with it."""
        self._clock(now)
        member = self._members.get(workflow)
        if member is None:
            return
        if member.held:
            self._queue.remove(member)
        self._inside.over(member, self._now)

    def inside(self, engine: str) -> Iterable[str]:
        """The workflows that count against an engine's limit."""
        return self._rooms[engine].inside.keys() if engine in self._rooms else ()

    def count(self, engine: str) -> int:
        """How many they are."""
        return len(self._rooms[engine].inside) if engine in self._rooms else 0

    @property
    def held(self) -> int:
        """Workflows with a call that waits."""
        return len(self._queue)

    @property
    def paused(self) -> Collection[str]:
        """Workflows that have had a place, and get another when they call again, oldest pause first."""
        return self._inside.paused.keys()

    def held_by_engine(self) -> dict[str, int]:
        """These, by the engine that they live on; "": on none yet."""
        return self._queue.by_engine()

    def take_events(self) -> list[GateEvent]:
        """What has happened since this was last asked, at most MAX_GATE_EVENTS, the latest."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def new_calls(self) -> int:
        """Calls that wait of workflows that have never been in."""
        return self._queue.new_calls

    @property
    def limited(self) -> bool:
        """Whether any engine has a limit."""
        return any(room.limit is not None for room in self._rooms.values())

    def tenants(self) -> Iterable[Tenant]:
        """The tenants of the workflows that are in or wait."""
        return self._shares.tenants()

    def queued(self, workflow: str, now: float) -> Queued | None:
        """How a workflow stands in the queue; None if it does not wait."""
        member = self._queue.get(workflow)
        if member is None:
            return None
        ahead = self._queue.ahead(member, member.claim)
        wait_s = self._inside.wait_s(member, ahead)
        estimate_s = None if wait_s is None else wait_s * member.tenant.lateness()
        return Queued(ahead + 1, self.held, max(0.0, now - member.asked), estimate_s)

    def _clock(self, now: float | None) -> None:
        if now is not None and now > self._now:
            self._now = now

    def _enter(self, member: Member) -> bool:
        """Lets a workflow in if there is room for which nobody waits."""
        engine = self._inside.engine_for(member)
        if engine is not None and (self._rooms[engine].free() < 1 or self._queue.head(engine) is not None):
            return False
        self._inside.let_in(member, engine, self._now)
        return True

    def _hold(self, member: Member, priority: int) -> None:
        if not member.known and self.new_calls >= self._bounds.max_waiting:
            self._refuse("full", self._inside.wait_s(member, 0))
        if not member.held:
            self._queue_up(member, (-priority, member.since, member.number, member.name))
        member.held += 1
        self._queue.new_calls += not member.known

    def _queue_up(self, member: Member, claim: Claim) -> None:
        expected_s = self._inside.wait_s(member, self._queue.ahead(member, claim))
        late_s = (expected_s or 0.0) * member.tenant.lateness() - self._bounds.expectable_s
        if not member.known and late_s > 0:
            self._refuse("wait", late_s)
        self._inside.remember(member)
        member.claim, member.asked, member.expected_s = claim, self._now, expected_s
        self._queue.add(member)
        self.counts["held"] += 1
        self._tell(member, "held")

    def _refuse(self, reason: Literal["full", "wait"], retry_after_s: float | None) -> None:
        self.counts[f"refused_{reason}"] += 1
        raise Refused(reason, retry_after_s)

    def _next(self, overdue: bool) -> Member | None:
        """Lets in whose turn it is; None: there is no room for anybody."""
        oldest = self._queue.oldest()
        if not self._rooms:
            return self._admit(oldest, None)
        if self._now - oldest.asked >= self._bounds.max_wait_s:
            engine = self._inside.engine_for(oldest)
            assert engine is not None, "there are rooms"
            self.counts["overdue"] += self._rooms[engine].free() < 1
            return self._admit(oldest, engine)
        if overdue:
            return None
        heads = {engine: head for engine in self._rooms if (head := self._queue.head(engine)) is not None}
        rooms = {engine: self._rooms[engine] for engine in heads if self._rooms[engine].free() >= 1}
        if not rooms:
            engine = next((engine for engine in heads if self._make_room(self._rooms[engine])), None)
            if engine is None:
                return None
            rooms = {engine: self._rooms[engine]}
        engine = roomiest(rooms)
        return self._admit(heads[engine], engine)

    def _admit(self, member: Member, engine: str | None) -> Member:
        self._queue.remove(member)
        if not member.known and member.expected_s is not None:
            member.tenant.waits.take(self._now - member.asked)
            member.tenant.expected.take(member.expected_s)
        self._inside.let_in(member, engine, self._now)
        member.running += member.held
        member.held = 0
        self.counts["let_in"] += 1
        self._tell(member, "let_in", self._now - member.asked)
        return member

    def _make_room(self, room: Room) -> bool:
        """Takes their places from those who have been idle for too long, if that frees one."""
        idle = room.longest_idle(1 - int(room.free()), self._now)
        for member in idle:
            self._inside.give_up(member, self._now)
            self._tell(member, "paused")
        self.counts["gave_up"] += len(idle)
        return bool(idle)

    def _pause(self, room: Room) -> None:
        excess = -room.free()
        if excess < 1:
            room.over_since = None
            return
        if room.over_since is None:
            room.over_since = self._now
        if self._now - room.over_since >= self._bounds.pause_after_s:
            for member in room.cheapest_idle(int(excess)):
                self._inside.pause(member, self._now)
                self._tell(member, "paused")
                self.counts["paused"] += 1

    def _tell(self, member: Member, what: str, waited_s: float = 0.0) -> None:
        self._events.append(GateEvent(member.name, what, member.engine or "", self._now, waited_s))
