"""Version two: where workflows begin, when they leave, and what it does without news."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_of_engines import ENGINES, WORKFLOWS, snapshot

from cache_actor.snapshots import Resident
from serving.routing import RoutedCall, make_router
from serving.routing.known_engine import NEW_S
from serving.routing.workflow_router import WorkflowRouter

CALL = RoutedCall("w", "planner", 2000)
Said = dict[str, dict[str, Any]]


def told(said: Said, version: int = 1, at: float = 0.0, **settings: Any) -> WorkflowRouter:
    """A router of some engines, that has heard of each what is said."""
    router = WorkflowRouter(**settings)
    router.set_engines(said)
    tell(router, said, version, at)
    return router


def tell(router: WorkflowRouter, said: Said, version: int = 2, at: float = 0.0) -> None:
    for engine, fields in said.items():
        router.see(snapshot(engine, version, at, **fields))


def went(router: WorkflowRouter, call: RoutedCall = CALL, now: float = 0.0, **running: int) -> tuple[str, str]:
    decision = router.route(call, running, now)
    assert decision is not None
    return decision.engine, decision.why


class TestWhatWasSentSinceASnapshot:
    def test_calls_that_were_answered_are_no_load_and_what_they_brought_is_there(self) -> None:
        router = told({"a": {}, "b": {}})
        first, _ = went(router)
        router.answered("w", first)
        known = router._known[first]
        idle = known.running, known.pending
        for number in range(50):
            assert went(router, replace(CALL, prompt_tokens=2000 + number), now=0.01 * number) == (first, "sticky")
            router.answered("w", first)
        assert (known.running, known.pending) == idle
        assert known.resident("w").device == 2049

    def test_short_calls_of_one_agent_one_after_the_other_share_an_engine(self) -> None:
        router = told({"a": {}, "b": {}})
        used = set()
        for number in range(4):  # more are worth another copy of the anchor
            engine, _ = went(router, RoutedCall(f"w{number}", "helper", 60, anchor="x", tagged=False))
            router.answered(f"w{number}", engine)
            used.add(engine)
        assert len(used) == 1


class TestWhereAWorkflowBegins:
    def test_where_its_tokens_are(self) -> None:
        held = {"workflows": {"w": Resident(1500)}}
        assert went(told({"a": {}, "b": held, "c": {}})) == ("b", "resident")

    def test_tokens_on_the_host_count_a_little_less(self) -> None:
        device, host = {"workflows": {"w": Resident(1500)}}, {"workflows": {"w": Resident(0, 1500)}}
        assert went(told({"a": host, "b": device, "c": {}})) == ("b", "resident")
        assert went(told({"a": host, "c": {}})) == ("a", "resident")

    def test_what_is_on_its_way_to_the_device_counts_as_there(self) -> None:
        host, coming = {"workflows": {"w": Resident(0, 1500)}}, {"workflows": {"w": Resident(0, 1500, 1500)}}
        assert went(told({"a": host, "b": coming})) == ("b", "resident")

    def test_a_child_begins_where_its_parents_context_is(self) -> None:
        router = told({"a": {}, "b": {"workflows": {"parent": Resident(1800)}}, "c": {}})
        assert went(router, RoutedCall("child", "coder", 2000, parent="parent")) == ("b", "parent")

    def test_where_its_anchor_is(self) -> None:
        assert went(told({"a": {}, "b": {"anchors": {"planner": 1000}}, "c": {}})) == ("b", "anchor")

    def test_untagged_calls_of_one_anchor_go_to_one_engine_before_any_snapshot_knows(self) -> None:
        router = told({engine: {} for engine in ENGINES})
        calls = [RoutedCall(f"u{number}", "agent-1f", 3000, anchor="1f", tagged=False) for number in range(3)]
        assert len({went(router, call)[0] for call in calls}) == 1

    def test_not_where_many_wait_even_if_its_anchor_is_there(self) -> None:
        busy = {"anchors": {"planner": 1000}, "pending_tokens": 40_000}
        assert went(told({"a": busy, "b": {}})) == ("b", "least-loaded")

    def test_not_where_contexts_do_not_fit(self) -> None:
        assert went(told({"a": {"needed_tokens": 20_000}, "b": {"needed_tokens": 5000}})) == ("b", "least-loaded")

    def test_not_on_an_engine_that_drains(self) -> None:
        draining = {"workflows": {"w": Resident(2000)}, "draining": True}
        assert went(told({"a": draining, "b": {"pending_tokens": 9000}})) == ("b", "least-loaded")

    def test_calls_between_two_snapshots_do_not_all_go_to_the_engine_that_was_idle(self) -> None:
        router = told({engine: {"capacity_tokens": 100_000} for engine in ENGINES})
        calls = [RoutedCall(f"w{number}", f"agent-{number}", 8000) for number in range(10)]
        assert set(Counter(went(router, call)[0] for call in calls).values()) == {2}


class TestHotAnchors:
    def test_an_anchor_gets_another_copy_when_more_workflows_come_than_one_engine_should_take(self) -> None:
        router = told({"a": {"anchors": {"planner": 1000}}, **{e: {} for e in "bcd"}}, workflow_bound=100)
        took = [went(router, RoutedCall(f"w{number}", "planner", 1200)) for number in range(12)]
        first_elsewhere = next(place for place, (engine, _) in enumerate(took) if engine != "a")
        assert {engine for engine, _ in took[:first_elsewhere]} == {"a"}
        assert first_elsewhere >= 1
        assert 2 <= len({engine for engine, _ in took}) <= 4

    def test_it_gets_none_where_there_is_no_room_for_one(self) -> None:
        room, full = {"needed_tokens": 5000}, {"needed_tokens": 9000}  # of 10,000; a team's anchors are 3 times 1,000
        for others, copied in ((room, True), (full, False)):
            holder = {"anchors": {"planner": 1000}, "needed_tokens": 9000}
            router = told({"a": holder, "b": others}, workflow_bound=100, few_workflows=100, running_call_s=0.0)
            took = [went(router, RoutedCall(f"w{number}", "planner", 1010))[0] for number in range(6)]
            assert ("b" in took) is copied

    def test_one_that_is_called_seldom_is_not_copied(self) -> None:
        router = told({"a": {"anchors": {"planner": 1000}, "running_calls": 3}, "b": {}})
        assert went(router) == ("a", "anchor")


class TestStaying:
    def test_a_workflow_stays_though_another_engine_is_a_little_better(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        tell(router, {home: {"pending_tokens": 3000}})
        assert went(router) == (home, "sticky")

    def test_it_leaves_for_one_that_is_much_better_and_its_old_copy_goes_after_the_answer(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        other = "b" if home == "a" else "a"
        assert router.answered("w", home) is None
        tell(router, {home: {"pending_tokens": 60_000, "workflows": {"w": Resident(2000)}}, other: {}})
        assert went(router) == (other, "overload")
        assert router.answered("w", other) == home
        assert went(router) == (other, "sticky")
        assert router.answered("w", other) is None

    def test_it_leaves_an_engine_that_drains(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        tell(router, {home: {"draining": True, "workflows": {"w": Resident(2000)}}})
        engine, why = went(router)
        assert (engine != home, why) == (True, "overload")

    @given(st.lists(st.sampled_from(WORKFLOWS), min_size=1, max_size=40))
    def test_without_pressure_nobody_ever_moves(self, names: list[str]) -> None:
        router = told({engine: {"capacity_tokens": 1_000_000} for engine in ENGINES})
        homes: dict[str, str] = {}
        for name in names:
            engine, _ = went(router, RoutedCall(name, "planner", 100))
            router.answered(name, engine)
            assert homes.setdefault(name, engine) == engine

    @given(st.integers(1, 60), st.integers(2, 5), st.floats(1, 3))
    def test_no_engine_gets_more_workflows_than_the_bound(self, workflows: int, engines: int, bound: float) -> None:
        holder = {"anchors": {"planner": 5000}, "capacity_tokens": 10**9}
        said: Said = {engine: {"pending_tokens": 10**7} for engine in ENGINES[1:engines]}
        router = told({ENGINES[0]: holder, **said}, workflow_bound=bound)
        load: Counter[str] = Counter()
        for number in range(workflows):
            engine, _ = went(router, RoutedCall(f"w{number}", "planner", 5000))
            load[engine] += 1
            assert load[engine] <= max(4, math.ceil(bound * (number + 1) / engines))


class TestWithoutNews:
    @given(st.lists(st.tuples(st.sampled_from(WORKFLOWS), st.booleans(), st.booleans()), max_size=30))
    def test_stale_snapshots_get_version_ones_answers(self, calls: list[tuple[str, bool, bool]]) -> None:
        hashed = make_router("session-hash")
        hashed.set_engines(ENGINES)
        router = told({engine: {"draining": True} for engine in ENGINES}, at=-10.0)
        for name, tagged, ends in calls:
            call = RoutedCall(name, "planner", 500, anchor="planner", tagged=tagged)
            assert router.route(call, {}, 0.0) == hashed.route(call, {}, 0.0)
            if ends:
                router.release(name)
                hashed.release(name)

    def test_a_workflow_whose_engine_says_nothing_stays_there(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        other = "b" if home == "a" else "a"
        tell(router, {other: {"workflows": {"w": Resident(2000)}}}, at=100.0)
        assert went(router, now=100.0) == (home, "sticky")

    def test_a_new_engine_is_taken_for_an_idle_one_until_it_has_been_silent_for_too_long(self) -> None:
        router = told({"a": {"pending_tokens": 50_000}})
        router.set_engines(["a", "new"])
        assert went(router, replace(CALL, workflow="first")) == ("new", "least-loaded")
        tell(router, {"a": {"pending_tokens": 50_000}}, at=NEW_S + 1)
        assert went(router, now=NEW_S + 1) == ("a", "least-loaded")

    def test_what_was_sent_is_not_kept_for_ever_when_no_snapshots_come(self) -> None:
        router = told({"a": {}})
        for second in range(1000):
            went(router, now=float(second))
        assert len(router._known["a"]._sent) < 20

    def test_a_snapshot_that_is_older_than_what_is_known_changes_nothing(self) -> None:
        router = told({"a": {}, "b": {}}, version=5)
        tell(router, {"a": {"workflows": {"w": Resident(2000)}}}, version=4)
        assert went(router)[1] == "least-loaded"

    def test_a_dropped_engine_is_dropped_at_once_and_its_workflows_go_elsewhere(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        router.drop_engine(home)
        engine, why = went(router)
        assert (engine != home, why) == (True, "least-loaded")
        tell(router, {home: {"workflows": {"w": Resident(2000)}}}, version=9)
        assert went(router) == (engine, "sticky")


class TestRehoming:
    def test_an_idle_workflow_leaves_an_engine_that_drains_before_its_next_call(self) -> None:
        router = told({"a": {}, "b": {}})
        home, _ = went(router)
        other = "b" if home == "a" else "a"
        tell(router, {home: {"draining": True}})
        assert router.rehome(0.0) == []  # a call of it runs
        router.answered("w", home)
        assert router.rehome(0.0) == ["w"]
        assert went(router) == (other, "overload")
        assert router.answered("w", other) == home

    def test_it_can_be_switched_off(self) -> None:
        router = told({"a": {}, "b": {}}, rehome=False)
        home, _ = went(router)
        router.answered("w", home)
        tell(router, {home: {"draining": True}})
        assert router.rehome(0.0) == []


@pytest.mark.parametrize("new", [True, False])
def test_a_decision_among_64_engines_takes_less_than_two_milliseconds_even_here(new: bool) -> None:
    held = {f"w{number}": Resident(3000) for number in range(200)}
    said: Said = {
        f"engine-{number}": {"workflows": held, "pending_tokens": 20_000, "needed_tokens": 9000} for number in range(64)
    }
    router = told(said)
    begin = time.thread_time()
    for number in range(200):
        went(router, RoutedCall(f"new-{number}" if new else f"w{number % 20}", "planner", 4000))
    assert (time.thread_time() - begin) / 200 < 2e-3
