"""Who gets how much of the places under overload, how long anybody waits, and what it costs: on a simulated clock."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission import Bounds, Gate, Refused
from cache_actor.admission.shares import Line, Shares

HOUR_S = 3600.0


@dataclass
class Crowd:
    """A tenant's workflows: so many a second, each in its place for about `stay_s`, half of it between calls."""

    per_s: float
    stay_s: float
    calls: int = 4


@dataclass
class Street:
    """Crowds before a gate, event by event."""

    gate: Gate
    crowds: dict[str, Crowd]
    seed: int = 0
    place_s: dict[str, float] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._held: dict[str, tuple[str, int, float]] = {}
        self._entered: dict[str, float] = {}

    def run(self, until: float) -> None:
        for tenant, crowd in self.crowds.items():
            self._next_arrival(tenant, crowd, 0.0)
        self._at(0.5, self._tick)
        while self._events and self._events[0][0] <= until:
            now, _, event = heapq.heappop(self._events)
            event(now)
        for workflow, entered in self._entered.items():
            self._count(workflow, entered, until)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _tick(self, now: float) -> None:
        self._let_in(now)
        self._at(now + 0.5, self._tick)

    def _next_arrival(self, tenant: str, crowd: Crowd, now: float) -> None:
        def arrive(then: float) -> None:
            self._call(f"{tenant}/{next(self._numbers)}", 0, then)
            self._next_arrival(tenant, crowd, then)

        self._at(now + self._draw.expovariate(crowd.per_s), arrive)

    def _call(self, workflow: str, index: int, now: float) -> None:
        tenant = workflow.partition("/")[0]
        try:
            engine = self.gate.ask(workflow, now, tenant)
        except Refused:
            self.refused[tenant] += 1
            return
        if engine is None:
            self._held[workflow] = (tenant, index, now)
        else:
            self._go(workflow, index, now)
        self._let_in(now)

    def _let_in(self, now: float) -> None:
        for workflow, _ in self.gate.admitted(now):
            tenant, index, asked = self._held.pop(workflow)
            self.waits.setdefault(tenant, []).append(now - asked)
            self._go(workflow, index, now)

    def _go(self, workflow: str, index: int, now: float) -> None:
        self._entered.setdefault(workflow, now)
        crowd = self.crowds[workflow.partition("/")[0]]
        length = crowd.stay_s / crowd.calls * self._draw.uniform(0.5, 1.5)
        self._at(now + length / 2, lambda then: self._answered(workflow, index, length / 2, then))

    def _answered(self, workflow: str, index: int, pause_s: float, now: float) -> None:
        self.gate.done(workflow, now)
        if index + 1 < self.crowds[workflow.partition("/")[0]].calls:
            self._at(now + pause_s, lambda then: self._call(workflow, index + 1, then))
        else:
            self.gate.over(workflow, now)
            self._count(workflow, self._entered.pop(workflow), now)
        self._let_in(now)

    def _count(self, workflow: str, entered: float, now: float) -> None:
        tenant = workflow.partition("/")[0]
        self.place_s[tenant] = self.place_s.get(tenant, 0.0) + now - entered

    def shares(self) -> dict[str, float]:
        return {tenant: seconds / sum(self.place_s.values()) for tenant, seconds in self.place_s.items()}


def street(crowds: dict[str, Crowd], limit: int, **bounds: Any) -> Street:
    gate = Gate(Bounds(**bounds))
    gate.set_limits({f"e{number}": limit for number in range(2)}, 0.0)
    return Street(gate, crowds)


class TestShares:
    @pytest.mark.parametrize("stays", [(60.0, 60.0, 60.0), (20.0, 60.0, 180.0), (180.0, 60.0, 20.0)])
    @pytest.mark.parametrize("limit", [6])
    def test_under_saturation_places_are_shared_by_weight_however_long_stays_are(
        self, limit: int, stays: tuple[float, float, float]
    ) -> None:
        weights = {"a": 1.0, "b": 2.0, "c": 4.0}
        capacity = 2 * limit
        crowds = {name: Crowd(1.5 * capacity / stay, stay) for name, stay in zip(weights, stays, strict=True)}
        found = street(crowds, limit, weights=weights)
        found.run(3 * HOUR_S)
        for name, share in found.shares().items():
            assert share == pytest.approx(weights[name] / 7, rel=0.05), found.shares()

    def test_a_crowd_does_not_lock_out_who_asks_for_less_than_its_share(self) -> None:
        found = street({"crowd": Crowd(8.0, 60.0), "few": Crowd(0.05, 60.0)}, limit=6)
        found.run(HOUR_S)
        assert len(found.waits["few"]) < 0.05 * HOUR_S * 1.3
        assert sorted(found.waits["few"])[len(found.waits["few"]) // 2] < 10.0
        assert max(found.waits["few"]) < 60.0

    def test_an_hour_at_twice_the_capacity_starves_nobody(self) -> None:
        limit, stay_s, max_wait_s = 10, 60.0, 120.0
        weights = {"a": 1.0, "b": 3.0}
        rate = 2 * 2 * limit / stay_s
        found = street(
            {"a": Crowd(rate / 2, stay_s), "b": Crowd(rate / 2, stay_s)}, limit, weights=weights, max_wait_s=max_wait_s
        )
        found.run(HOUR_S)
        assert max(max(waits) for waits in found.waits.values()) <= max_wait_s + 0.5
        assert min(len(waits) for waits in found.waits.values()) > 100
        assert found.shares()["b"] == pytest.approx(0.75, rel=0.05)
        overdue = found.gate.counts["overdue"]
        assert overdue < 0.05 * found.gate.counts["let_in"], "refusing keeps most waits below the limit"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end"])), max_size=60))
def test_within_a_tenant_who_comes_first_goes_first(events: list[tuple[str, str]]) -> None:
    gate = Gate(Bounds(weights={"a": 2.0}))
    gate.set_limits({"e": 2})
    asked: dict[str, list[str]] = {}
    went: dict[str, list[str]] = {}
    inside: list[str] = []
    for number, (tenant, event) in enumerate(events):
        if event == "ask":
            name = f"{tenant}{number}"
            asked.setdefault(tenant, []).append(name)
            came = [(name, "e")] if gate.ask(name, number, tenant) is not None else []
        elif inside:
            gate.over(inside.pop(0), number)
            came = gate.admitted(number)
        else:
            continue
        for name, _ in came:
            inside.append(name)
            went.setdefault(name[0], []).append(name)
    for tenant, names in went.items():
        assert names == asked[tenant][: len(names)]


class TestTenants:
    def test_tenants_that_come_once_are_forgotten(self) -> None:
        gate = Gate()
        gate.set_limits({"e": 4})
        for number in range(20_000):
            gate.ask(f"w{number}", float(number), f"tenant-{number}")
            gate.over(f"w{number}", float(number))
        assert len(gate._shares._tenants) <= 1024

    def test_nobody_saves_up_what_it_has_not_used(self) -> None:
        shares = Shares({})
        busy, late = shares.tenant("busy"), shares.tenant("late")
        for _ in range(100):
            shares.wait(busy)
            shares.charge(busy)
        shares.wait(late)
        assert late.virtual_s == pytest.approx(busy.virtual_s, abs=1.0)

    @given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3), st.integers(0, 9)), unique=True))
    def test_about_how_many_go_before_is_never_more_than_wait(self, entries: list[tuple[str, int, int]]) -> None:
        shares, line = Shares({"a": 5.0}), Line()
        for number, (name, priority, since) in enumerate(entries):
            claim = (priority, float(since), number, f"w{number}")
            assert 0 <= line.ahead(shares.tenant(name), claim) <= len(line)
            line.add(shares.tenant(name), claim)
            assert 0 <= line.ahead(shares.tenant(name), claim) < len(line)
        assert len(list(line)) == len(line) == len(entries)


def test_ten_thousand_that_wait_cost_microseconds_each() -> None:
    """The budget is ten times what was measured; a scan of all that wait would take a hundred times as long."""
    gate = Gate()
    gate.set_limits({f"e{number}": 8 for number in range(8)}, 0.0)
    took: dict[str, float] = {}

    def measure(what: str, work: Callable[[int], object]) -> None:
        began = time.perf_counter()
        for number in range(10_000):
            work(number)
        took[what] = (time.perf_counter() - began) / 10_000 * 1e6

    measure("ask", lambda number: gate.ask(f"w{number}", float(number), f"tenant-{number % 500}"))
    assert gate.held == 10_000 - 64
    measure("queued", lambda number: gate.queued(f"w{number}", 1e4))
    inside = [name for engine in range(8) for name in gate.inside(f"e{engine}")]

    def end_one(number: int) -> None:
        gate.over(inside[number], 2e4 + number)
        inside.extend(name for name, _ in gate.admitted(2e4 + number))

    measure("over and admitted", end_one)
    assert (gate.held, len(inside)) == (0, 10_000)
    assert all(microseconds < 500 for microseconds in took.values()), took
