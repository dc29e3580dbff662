"""Shares of the places between tenants, and the order in which those who wait for the same places get them.

Start-time fair queueing (Goyal, Vin and Cheng 1996) with seconds in a place as the service: a tenant's virtual time
grows by what its workflows hold, over its weight, and the tenant that is least far goes next. What a stay will take is
not known when it begins: it is charged as the tenant's latest stays were long, and put right when it ends.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# The latest stays that an average is of.
_STAYS = 32
# Fewer say nothing.
_FEW = 4
# So that workflows which come and go within one tick of the clock count, too.
_LEAST_STAY_S = 0.001
# Tenants that are remembered though nobody of theirs is here.
_IDLE_TENANTS = 1024

# Ends in the workflow's name; the least goes first.
Claim = tuple[int, float, int, str]


@dataclass(slots=True)
class Mean:
    """Of the latest values; None before the first."""

    value: float | None = None
    count: int = 0

    def take(self, value: float) -> None:
        self.count = min(self.count + 1, _STAYS)
        self.value = value if self.value is None else self.value + (value - self.value) / self.count


@dataclass(slots=True)
class Tenant:
    """Whose workflows share a weight.

    Attributes:
        virtual_s: seconds in places over the weight, charged so far.
        members: workflows that the gate knows; `waiting` those of them that wait.
        stays: how long its workflows hold a place, in seconds.
        waits, expected: how long they have waited, and were thought to have to, in seconds.
    """

    name: str
    weight: float
    virtual_s: float = 0.0
    members: int = 0
    waiting: int = 0
    stays: Mean = field(default_factory=Mean)
    waits: Mean = field(default_factory=Mean)
    expected: Mean = field(default_factory=Mean)

    def lateness(self) -> float:
        """What a wait that is expected is to be multiplied by, as waits turned out: others come meanwhile."""
        if self.waits.count < _FEW or not self.waits.value or not self.expected.value:
            return 1.0
        return self.waits.value / self.expected.value


class Shares:
    """All tenants. What one does not use is the others'; nobody saves up what it has not used.

    Args:
        weights: by tenant, more than 0; a tenant that is not in it weighs 1.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: dict[str, Tenant] = {}
        self._virtual_s = 0.0
        self._sweep_at = _IDLE_TENANTS
        self.stays = Mean()

    def tenant(self, name: str) -> Tenant:
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= self._sweep_at:
                self._tenants = {name: one for name, one in self._tenants.items() if one.members}
                self._sweep_at = max(_IDLE_TENANTS, 2 * len(self._tenants))
            found = self._tenants[name] = Tenant(name, self._weights.get(name, 1.0))
        return found

    def tenants(self) -> Iterator[Tenant]:
        """Those with a workflow that the gate knows."""
        return (tenant for tenant in self._tenants.values() if tenant.members)

    def wait(self, tenant: Tenant) -> None:
        """One more workflow of it waits."""
        if not tenant.waiting:
            tenant.virtual_s = max(tenant.virtual_s, self._virtual_s)
        tenant.waiting += 1

    def charge(self, tenant: Tenant) -> float:
        """A workflow of it gets a place; the seconds that are charged for it."""
        expected = tenant.stays.value or self.stays.value or 1.0
        self._virtual_s = max(self._virtual_s, tenant.virtual_s)
        tenant.virtual_s += expected / tenant.weight
        return expected

    def settle(self, tenant: Tenant, charged_s: float, stay_s: float) -> None:
        """A workflow of it has left its place."""
        stay_s = max(stay_s, _LEAST_STAY_S)
        tenant.virtual_s += (stay_s - charged_s) / tenant.weight
        tenant.stays.take(stay_s)
        self.stays.take(stay_s)


class Line:
    """Who waits for the same places, in sorted lists: to add and to take away is a bisection and a move of memory."""

    def __init__(self) -> None:
        self._order: list[tuple[float, str]] = []
        self._filed: dict[str, float] = {}
        self._claims: dict[str, list[Claim]] = {}
        self._weight = 0.0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Claim]:
        for claims in self._claims.values():
            yield from claims

    def add(self, tenant: Tenant, claim: Claim) -> None:
        claims = self._claims.get(tenant.name)
        if claims is None:
            claims = self._claims[tenant.name] = []
            self._file(tenant)
            self._weight += tenant.weight
        insort(claims, claim)
        self._length += 1

    def remove(self, tenant: Tenant, claim: Claim) -> None:
        claims = self._claims[tenant.name]
        del claims[bisect_left(claims, claim)]
        self._length -= 1
        if not claims:
            del self._claims[tenant.name]
            self._unfile(tenant.name)
            self._weight = self._weight - tenant.weight if self._claims else 0.0

    def moved(self, tenant: Tenant) -> None:
        """A tenant's virtual time is another."""
        if tenant.name in self._filed:
            self._unfile(tenant.name)
            self._file(tenant)

    def head(self) -> tuple[float, Claim] | None:
        """Who goes next, after its tenant's virtual time; None if nobody waits."""
        if not self._order:
            return None
        virtual_s, name = self._order[0]
        return virtual_s, self._claims[name][0]

    def ahead(self, tenant: Tenant, claim: Claim) -> int:
        """About how many go before a claim, in the line or about to be: the tenant's own before it, and of the others
        as many as their weights let in meanwhile."""
        claims = self._claims.get(tenant.name)
        before = bisect_left(claims, claim) if claims else 0
        others = self._length - len(claims or ())
        weight = self._weight - tenant.weight if claims else self._weight
        return before + min(others, math.ceil((before + 1) * weight / tenant.weight))

    def _file(self, tenant: Tenant) -> None:
        self._filed[tenant.name] = tenant.virtual_s
        insort(self._order, (tenant.virtual_s, tenant.name))

    def _unfile(self, name: str) -> None:
        del self._order[bisect_left(self._order, (self._filed.pop(name), name))]
