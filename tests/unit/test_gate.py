"""The gate: who is in, who waits and who is paused, whatever comes and goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache_actor.admission import Bounds, Gate, Refused
from cache_actor.admission_messages import GateEvent

ENGINES = ["e0", "e1", "e2"]


def gate_of(limits: dict[str, int | None], **bounds: float) -> Gate:
    gate = Gate(Bounds(**bounds))  # type: ignore[arg-type]
    gate.set_limits(limits, 0.0)
    return gate


def fill(gate: Gate, *workflows: str, now: float = 0.0) -> None:
    for workflow in workflows:
        assert gate.ask(workflow, now) is not None
        gate.done(workflow, now)


class TestEntering:
    def test_without_engines_everybody_goes_anywhere(self) -> None:
        assert [Gate().ask(f"w{i}", 0.0) for i in range(3)] == ["", "", ""]

    def test_without_limits_everybody_goes_where_fewest_are(self) -> None:
        gate = gate_of({"e0": None, "e1": None})
        assert [gate.ask(f"w{i}", 0.0) for i in range(4)] == ["e0", "e1", "e0", "e1"]
        assert not gate.limited

    def test_a_new_workflow_goes_to_the_engine_with_most_room(self) -> None:
        gate = gate_of({"e0": 1, "e1": 3})
        assert [gate.ask(f"w{i}", 0.0) for i in range(5)] == ["e1", "e1", "e0", "e1", None]
        assert gate.limited

    def test_all_held_calls_of_a_workflow_go_together_when_a_place_is_free(self) -> None:
        gate = gate_of({"e0": 1})
        gate.ask("in", 0.0)
        assert [gate.ask("next", 1.0), gate.ask("next", 2.0), gate.ask("last", 3.0)] == [None] * 3
        assert (gate.held, gate.new_calls) == (2, 3)
        gate.over("in", 4.0)
        assert gate.admitted(4.0) == [("next", "e0")]
        gate.done("next", 5.0)
        assert list(gate.inside("e0")) == ["next"]

    def test_nobody_slips_in_before_those_who_wait(self) -> None:
        gate = gate_of({"e0": 1})
        gate.ask("in", 0.0)
        gate.ask("waits", 1.0)
        gate.over("in", 2.0)
        assert gate.ask("slips", 2.0) is None
        assert gate.admitted() == [("waits", "e0")]

    def test_a_higher_priority_goes_first_and_equals_in_order(self) -> None:
        gate = gate_of({"e0": 1})
        gate.ask("in", 0.0)
        for workflow, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
            gate.ask(workflow, 1.0, priority=priority)
        order = []
        for before in ("in", "high", "first", "second"):
            gate.over(before, 2.0)
            order += [workflow for workflow, _ in gate.admitted(2.0)]
        assert order == ["high", "first", "second", "low"]

    def test_what_a_workflow_starts_comes_in_with_it_or_waits_as_if_it_had_come_then(self) -> None:
        gate = gate_of({"e0": 1}, pause_after_s=0.0)
        gate.ask("parent", 0.0)
        gate.ask("waits", 1.0)
        assert gate.ask("child", 2.0, parent="parent") == "e0"
        gate.done("parent", 3.0)
        assert list(gate.inside("e0")) == ["child"]
        assert gate.ask("other child", 4.0, parent="parent") is None
        gate.over("child", 5.0)
        assert gate.admitted(5.0) == [("other child", "e0")]
        assert gate.ask("orphan", 6.0, parent="nobody") is None

    def test_what_a_workflow_of_another_gate_has_started_comes_in_at_once(self) -> None:
        gate = gate_of({"e0": 1}, alone=False)
        gate.ask("in", 0.0)
        assert gate.ask("child", 1.0, parent="elsewhere") == "e0"
        assert gate.count("e0") == 2
        assert gate.ask("waits", 2.0) is None
        assert gate.ask("its child", 3.0, parent="waits") is None

    def test_when_the_limits_go_everybody_goes(self) -> None:
        gate = gate_of({"e0": 1})
        for i in range(10):
            gate.ask(f"w{i}", 0.0)
        gate.set_limits({"e0": None})
        assert len(gate.admitted()) == 9


class TestLeaving:
    def test_a_held_client_that_leaves_is_forgotten(self) -> None:
        gate = gate_of({"e0": 1})
        gate.ask("in", 0.0)
        gate.ask("left", 0.0)
        gate.left("left")
        gate.over("in")
        assert (gate.held, gate.admitted()) == (0, [])
        assert [tenant.members for tenant in gate.tenants()] == []

    def test_a_workflow_that_ends_takes_its_held_calls_along(self) -> None:
        gate = gate_of({"e0": 1})
        gate.ask("in", 0.0)
        gate.ask("ended", 0.0)
        gate.over("ended")
        gate.over("in")
        assert (gate.held, gate.new_calls, gate.admitted()) == (0, 0, [])

    def test_what_is_not_known_may_be_ended(self) -> None:
        gate = gate_of({"e0": 1})
        gate.over("nobody")
        gate.left("nobody")
        gate.done("nobody")
        gate.placed("nobody", "e0")
        assert list(gate.inside("e0")) == []


class TestPausing:
    def test_the_cheapest_idle_ones_are_paused_and_come_back_first(self) -> None:
        gate = gate_of({"e0": 3}, pause_after_s=0.0)
        fill(gate, "large", "small", "runs")
        gate.ask("runs", 0.0)
        gate.note("large", tokens=900)
        gate.note("small", tokens=10)
        assert gate.ask("new", 1.0) is None
        gate.set_limits({"e0": 2}, 2.0)
        assert set(gate.inside("e0")) == {"large", "runs"}
        assert gate.ask("small", 3.0) is None
        gate.over("large", 4.0)
        assert gate.admitted(4.0) == [("small", "e0")]

    def test_a_long_gap_and_a_far_end_are_cheap_to_pause(self) -> None:
        gate = gate_of({"e0": 3}, pause_after_s=0.0)
        fill(gate, "soon", "later", "long")
        gate.note("soon", tokens=100, gap_s=1)
        gate.note("later", tokens=100, gap_s=9)
        gate.note("long", tokens=100, gap_s=1, remaining=20)
        gate.set_limits({"e0": 1})
        assert list(gate.inside("e0")) == ["soon"]

    def test_those_of_which_nothing_is_known_are_paused_last_and_the_latest_first(self) -> None:
        gate = gate_of({"e0": 3}, pause_after_s=0.0)
        fill(gate, "early", "late", "known")
        gate.note("known", tokens=90_000)
        gate.set_limits({"e0": 2})
        assert list(gate.inside("e0")) == ["early", "late"]
        gate.set_limits({"e0": 1})
        assert list(gate.inside("e0")) == ["early"]
        assert list(gate.paused) == ["known", "late"]

    def test_one_that_runs_is_not_paused_until_its_call_is_over(self) -> None:
        gate = gate_of({"e0": 2}, pause_after_s=0.0)
        gate.ask("a", 0.0)
        gate.ask("b", 0.0)
        gate.set_limits({"e0": 1}, 1.0)
        assert set(gate.inside("e0")) == {"a", "b"}
        gate.done("b", 2.0)
        assert list(gate.inside("e0")) == ["a"]

    def test_a_limit_that_goes_down_and_up_pauses_nobody(self) -> None:
        gate = gate_of({"e0": 4}, pause_after_s=3.0)
        fill(gate, *"abcd")
        for second in range(60):
            gate.set_limits({"e0": 3 if second % 2 else 4}, float(second))
            gate.admitted(float(second))
        assert gate.counts["paused"] == 0

    def test_a_limit_that_stays_down_pauses_after_a_while_and_only_once(self) -> None:
        gate = gate_of({"e0": 4}, pause_after_s=3.0)
        fill(gate, *"abcd")
        for second in range(60):
            gate.set_limits({"e0": 2}, float(second))
            assert (len(list(gate.inside("e0"))) == 4) == (second < 3)
        assert gate.counts["paused"] == 2

    def test_who_has_been_idle_for_long_gives_its_place_to_one_that_waits_and_to_nobody_else(self) -> None:
        gate = gate_of({"e0": 1}, idle_s=30.0)
        fill(gate, "idle")
        gate.admitted(100.0)
        assert list(gate.inside("e0")) == ["idle"]
        gate.done("idle", 100.0)
        gate.ask("waits", 101.0)
        assert gate.admitted(129.0) == []
        assert gate.admitted(130.0) == [("waits", "e0")]
        assert gate.ask("idle", 131.0) is None

    def test_who_is_not_expected_again_gives_its_place_at_once(self) -> None:
        gate = gate_of({"e0": 1}, idle_s=30.0)
        gate.ask("once", 0.0)
        gate.ask("waits", 1.0)
        gate.done("once", 2.0, lasting=False)
        assert gate.admitted(2.0) == [("waits", "e0")]


def test_what_happens_is_told_once() -> None:
    gate = gate_of({"e0": 1}, pause_after_s=0.0)
    fill(gate, "a")
    assert gate.take_events() == []
    gate.ask("b", 1.0)
    assert gate.held_by_engine() == {"": 1}
    gate.set_limits({"e0": 0}, 2.0)
    gate.ask("a", 3.0)
    assert gate.held_by_engine() == {"": 1, "e0": 1}
    gate.set_limits({"e0": 1}, 4.0)
    gate.admitted(4.0)
    assert gate.take_events() == [
        GateEvent("b", "held", "", 1.0, 0.0),
        GateEvent("a", "paused", "e0", 2.0, 0.0),
        GateEvent("a", "held", "e0", 3.0, 0.0),
        GateEvent("a", "let_in", "e0", 4.0, 1.0),
    ]
    assert (gate.take_events(), list(gate.paused)) == ([], [])


class TestEngines:
    def test_a_workflow_counts_where_it_was_placed(self) -> None:
        gate = gate_of({"e0": 1, "e1": 1})
        assert gate.ask("w", 0.0) == "e0"
        gate.placed("w", "e1")
        assert (list(gate.inside("e0")), list(gate.inside("e1"))) == ([], ["w"])
        assert gate.ask("w", 1.0) == "e1"

    def test_one_that_is_placed_on_an_engine_that_is_gone_lets_nobody_in_there(self) -> None:
        gate = gate_of({"e0": 1, "e1": 1})
        fill(gate, "a", "b")
        assert gate.ask("waits", 1.0) is None
        gate.set_limits({"e1": 1}, 2.0)
        gate.placed("a", "e0")
        gate.placed("b", "never heard of")
        assert gate.admitted(3.0) == [("waits", "e1")]
        assert gate.ask("another", 4.0) is None
        gate.placed("a", "e1")
        assert set(gate.inside("e1")) == {"a", "waits"}

    def test_workflows_of_an_engine_that_is_gone_go_on_and_count_where_they_come_to_live(self) -> None:
        gate = gate_of({"e0": 1, "e1": 1}, pause_after_s=100.0)
        fill(gate, "a", "b")
        gate.set_limits({"e1": 1}, 1.0)
        assert gate.ask("a", 1.0) == ""
        gate.placed("a", "e1")
        assert set(gate.inside("e1")) == {"a", "b"}

    def test_one_paused_on_an_engine_that_is_gone_waits_for_any_other(self) -> None:
        gate = gate_of({"e0": 1, "e1": 1}, pause_after_s=0.0)
        fill(gate, "a", "b", now=0.0)
        gate.ask("c", 0.0)
        gate.set_limits({"e0": 0, "e1": 1}, 1.0)
        assert gate.ask("a", 2.0) is None
        gate.set_limits({"e1": 1}, 3.0)
        gate.over("b", 4.0)
        assert gate.admitted(4.0) == [("a", "e1")]


class TestBounds:
    def test_nobody_waits_longer_than_the_limit_says(self) -> None:
        gate = gate_of({"e0": 1}, max_wait_s=10.0)
        gate.ask("in", 0.0)
        gate.ask("first", 1.0)
        gate.ask("second", 2.0)
        assert gate.admitted(10.9) == []
        assert gate.admitted(11.0) == [("first", "e0")]
        assert gate.admitted(12.0) == [("second", "e0")]
        assert gate.counts["overdue"] == 2

    def test_beyond_max_waiting_new_workflows_are_refused_and_known_ones_are_not(self) -> None:
        gate = gate_of({"e0": 2}, max_waiting=2, pause_after_s=0.0)
        fill(gate, "in", "paused")
        gate.set_limits({"e0": 1}, 1.0)
        gate.ask("w0", 2.0)
        gate.ask("w0", 2.0)
        for workflow in ("w0", "w1"):
            with pytest.raises(Refused) as caught:
                gate.ask(workflow, 2.0)
            assert caught.value.reason == "full"
        assert gate.ask("paused", 2.0) is None
        gate.left("w0")
        assert gate.ask("w1", 3.0) is None

    def test_who_would_wait_too_long_is_refused_and_told_when_to_come_again(self) -> None:
        gate = gate_of({"e0": 2}, max_wait_s=80.0)
        for number in range(8):  # a stay is 40 s: with two places one becomes free every 20 s
            gate.ask(f"w{number}", number * 40.0)
            gate.over(f"w{number}", (number + 1) * 40.0)
        gate.ask("a", 400.0)
        gate.ask("b", 400.0)
        assert [gate.ask(name, 400.0) for name in ("c", "d", "e")] == [None] * 3
        with pytest.raises(Refused) as caught:
            gate.ask("f", 400.0)
        assert caught.value.reason == "wait"
        assert caught.value.retry_after_s == pytest.approx(20.0)
        queued = gate.queued("e", 410.0)
        assert queued is not None
        assert (queued.place, queued.waiting, queued.waited_s) == (3, 3, 10.0)
        assert queued.estimate_s == pytest.approx(60.0)

    def test_nobody_is_refused_by_an_estimate_that_nothing_stands_behind(self) -> None:
        gate = gate_of({"e0": 1}, max_wait_s=1.0)
        gate.ask("in", 0.0)
        assert [gate.ask(f"w{number}", 0.0) for number in range(50)] == [None] * 50


class GateMachine(RuleBasedStateMachine):
    """Anything in any order, with a picture beside the gate that is kept by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = Gate(Bounds(max_wait_s=50.0, max_waiting=12, idle_s=20.0, pause_after_s=2.0, weights={"t1": 3.0}))
        self.limits: dict[str, int | None] = {}
        self.held: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.inside: set[str] = set()

    def _is_in(self, workflow: str) -> bool:
        return self.gate._members[workflow].inside

    def _beyond(self) -> int:
        limits = ((engine, limit) for engine, limit in self.limits.items() if limit is not None)
        return sum(max(0, len(list(self.gate.inside(engine))) - limit) for engine, limit in limits)

    def _let_in(self) -> None:
        beyond, overdue = self._beyond(), self.gate.counts["overdue"]
        came = self.gate.admitted(self.now)
        assert self._beyond() <= beyond + self.gate.counts["overdue"] - overdue, "nobody else gets in beyond a limit"
        for workflow, engine in came:
            assert engine in self.limits or (engine == "" and not self.limits)
            self.running[workflow] = self.running.get(workflow, 0) + self.held.pop(workflow)
            self.inside.add(workflow)

    def _forget(self, workflow: str) -> None:
        self.inside.discard(workflow)
        self.held.pop(workflow, None)
        self.running.pop(workflow, None)

    @rule(number=st.integers(0, 25), priority=st.sampled_from([0, 0, 0, 4]))
    def ask(self, number: int, priority: int) -> None:
        workflow, parent = f"w{number}", f"w{number - 20}"
        with_parent = workflow not in self.gate._members and parent in self.inside and self._is_in(parent)
        beyond = self._beyond()
        try:
            engine = self.gate.ask(workflow, self.now, f"t{number % 3}", priority, parent)
        except Refused:
            assert workflow not in self.inside
            return
        if engine is None:
            self.held[workflow] = self.held.get(workflow, 0) + 1
        else:
            assert workflow not in self.held
            self.running[workflow] = self.running.get(workflow, 0) + 1
            self.inside.add(workflow)
        assert self._beyond() - beyond in ((0, 1) if with_parent else (0,))
        assert engine is not None or not with_parent
        self._let_in()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), lasting=st.booleans())
    def done(self, data: st.DataObject, lasting: bool) -> None:
        workflow = data.draw(st.sampled_from(sorted(self.running)))
        self.gate.done(workflow, self.now, lasting)
        self.running[workflow] -= 1
        if not self.running[workflow]:
            del self.running[workflow]
        self._let_in()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        workflow = data.draw(st.sampled_from(sorted(self.held)))
        self.gate.left(workflow)
        self.held[workflow] -= 1
        if not self.held[workflow]:
            del self.held[workflow]
        self._let_in()

    @rule(number=st.integers(0, 25))
    def end(self, number: int) -> None:
        self.gate.over(f"w{number}", self.now)
        self._forget(f"w{number}")
        self._let_in()

    @rule(number=st.integers(0, 25), engine=st.sampled_from(ENGINES))
    def re_home(self, number: int, engine: str) -> None:
        self.gate.placed(f"w{number}", engine)
        self._let_in()
        assert self.gate._rooms.keys() == self.limits.keys()

    @rule(number=st.integers(0, 25), tokens=st.integers(0, 9000), gap_s=st.floats(0, 60))
    def note(self, number: int, tokens: int, gap_s: float) -> None:
        self.gate.note(f"w{number}", tokens, gap_s)

    @rule(limits=st.dictionaries(st.sampled_from(ENGINES), st.none() | st.integers(0, 6)))
    def limit(self, limits: dict[str, int | None]) -> None:
        self.limits = limits
        self.gate.set_limits(limits, self.now)
        self._let_in()

    @rule(seconds=st.floats(0, 30))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self._let_in()

    @invariant()
    def all_calls_are_accounted_for(self) -> None:
        assert self.gate.held == len(self.held)
        known = set(self.running) | set(self.held)
        assert known <= set(self.gate._members)
        for workflow, member in self.gate._members.items():
            assert member.held == self.held.get(workflow, 0)
            assert member.running == self.running.get(workflow, 0)
            assert not (member.held and member.inside)
            assert not member.running or member.inside, "who runs has a place"
        never_in = [member for member in self.gate._members.values() if not member.known]
        assert self.gate.new_calls == sum(member.held for member in never_in)
        assert all(member.held for member in never_in), "who was never in and does not wait is forgotten"
        outside = {name for name, member in self.gate._members.items() if member.known and not member.inside}
        assert set(self.gate.paused) == outside
        assert sum(self.gate.held_by_engine().values()) == self.gate.held

    @invariant()
    def no_place_is_lost_or_counted_twice(self) -> None:
        inside = [name for engine in self.limits for name in self.gate.inside(engine)]
        assert len(inside) == len(set(inside))
        for name in inside:
            assert self.gate._members[name].inside
        for engine, room in self.gate._rooms.items():
            idle = [name for _, _, name in room._idle]
            at_rest = {name for name, member in room.inside.items() if not member.running}
            assert len(idle) == len(set(idle))
            assert set(idle) == at_rest
            assert all(member.engine == engine for member in room.inside.values())

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        for member in self.gate._queue:
            for engine in [member.engine] if member.engine else self.limits:
                limit = self.limits[engine]
                assert limit is not None
                assert len(list(self.gate.inside(engine))) >= limit
            assert self.limits, "without engines nobody waits"
            assert self.now - member.asked < 50.0

    @invariant()
    def the_books_of_the_tenants_are_right(self) -> None:
        members = list(self.gate._members.values())
        for tenant in self.gate.tenants():
            own = [member for member in members if member.tenant is tenant]
            assert tenant.members == len(own)
            assert tenant.waiting == sum(1 for member in own if member.held)
        queue = self.gate._queue
        lines = [queue._new, *queue._returning.values()]
        assert sum(len(line) for line in lines) == self.gate.held
        assert sorted(claim[-1] for line in lines for claim in line) == sorted(member.name for member in queue)

    def teardown(self) -> None:
        for workflow in list(self.gate._members):
            self.gate.over(workflow, self.now)
        assert not self.gate._members
        assert not self.gate.held
        assert not list(self.gate.tenants())
        assert not any(room.inside or room._idle for room in self.gate._rooms.values())
        assert self.gate.new_calls == 0


GateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGateUnderAnything = GateMachine.TestCase


def test_a_thousand_clients_that_come_and_go_at_random_leak_no_place() -> None:
    draw = random.Random(8)
    gate = gate_of({"e0": 5, "e1": 7}, max_wait_s=40.0, idle_s=15.0)
    held: set[str] = set()
    running: set[str] = set()
    now = 0.0
    for number in range(1000):
        now += draw.random()
        name = f"w{number}"
        (held if gate.ask(name, now, f"t{number % 7}") is None else running).add(name)
        for other in [one for one in held if draw.random() < 0.1]:
            held.remove(other)
            gate.left(other)
        for other in [one for one in running if draw.random() < 0.2]:
            running.remove(other)
            gate.done(other, now, lasting=draw.random() < 0.5)
            if draw.random() < 0.7:
                gate.over(other, now)
        for other, _ in gate.admitted(now):
            held.remove(other)
            running.add(other)
    for name in list(gate._members):
        gate.left(name)
        gate.over(name, now)
    assert gate.held == 0
    assert [list(gate.inside(engine)) for engine in ("e0", "e1")] == [[], []]
    assert [gate.ask(f"again{number}", now) for number in range(13)].count(None) == 1
