"""Who waits for a place: new workflows for one on any engine, paused ones for one on their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from cache_actor.admission.room import Member
from cache_actor.admission.shares import Claim, Line, Shares, Tenant


class Queue:
    """A line for new workflows, and one for each engine that paused ones come back to.

    Attributes:
        new_calls: calls that wait of workflows that have never been in.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._new = Line()
        self._returning: dict[str, Line] = {}
        self._members: OrderedDict[str, Member] = OrderedDict()  # by when they began to wait
        self.new_calls = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, workflow: str) -> Member | None:
        return self._members.get(workflow)

    def oldest(self) -> Member:
        return next(iter(self._members.values()))

    def by_engine(self) -> dict[str, int]:
        """How many wait, by the engine they live on; "": on none yet."""
        held = {"": len(self._new)} if self._new else {}
        return held | {engine: len(line) for engine, line in self._returning.items()}

    def add(self, member: Member) -> None:
        """It waits: for its own engine if it has one, for any otherwise."""
        self._shares.wait(member.tenant)
        self.moved(member.tenant)
        self._line(member.engine).add(member.tenant, member.claim)
        self._members[member.name] = member

    def remove(self, member: Member) -> None:
        """It waits no more, for any of its calls."""
        line = self._line(member.engine)
        line.remove(member.tenant, member.claim)
        if not line and member.engine is not None:
            del self._returning[member.engine]
        member.tenant.waiting -= 1
        del self._members[member.name]
        self.new_calls -= 0 if member.known else member.held

    def close(self, engine: str) -> None:
        """The engine is gone: who waits for it waits for any other."""
        for claim in self._returning.pop(engine, ()):
            member = self._members[claim[-1]]
            member.engine = None
            self._new.add(member.tenant, claim)

    def moved(self, tenant: Tenant) -> None:
        """A tenant's virtual time is another."""
        if tenant.waiting:
            for line in (self._new, *self._returning.values()):
                line.moved(tenant)

    def head(self, engine: str) -> Member | None:
        """Who gets the next place of an engine."""
        found = self._new.head()
        returning = self._returning.get(engine)
        if returning is not None and (other := returning.head()) is not None:
            found = other if found is None else min(found, other)
        return None if found is None else self._members[found[1][-1]]

    def ahead(self, member: Member, claim: Claim) -> int:
        """About how many get a place before a claim of a workflow, whether it waits already or not."""
        if member.engine is not None:
            line = self._returning.get(member.engine)
            return 0 if line is None else line.ahead(member.tenant, claim)
        return self._new.ahead(member.tenant, claim) + sum(len(line) for line in self._returning.values())

    def _line(self, engine: str | None) -> Line:
        return self._new if engine is None else self._returning.setdefault(engine, Line())
