"""The routing table: one answer a call, engines that come, go and are lost, and two threads that ask."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from snapshots_of_engines import snapshot

from cache_actor.messages import RequestIdentity
from cache_actor.snapshots import Resident
from serving.calls import EngineCall
from serving.routing import Decision
from serving.routing_table import LOST_DOUBLINGS, LOST_S, RoutingTable, routing_table

ENGINES = ["a", "b", "c"]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def call(rid: str, workflow: str = "w", agent: str = "planner", prompt: Any = "Speak.", **more: Any) -> EngineCall:
    identity = RequestIdentity(workflow, agent, source="header")
    return EngineCall("completion", {"prompt": prompt}, identity, rid, **more)


@dataclass
class Desk:
    router: str = "workflow"
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.table = RoutingTable(self.router, clock=self.clock)
        self.table.set_engines(ENGINES)

    def see(self, *resident: tuple[str, str], **fields: Any) -> None:
        """All engines are heard of: who has which workflow."""
        self.clock.now += 0.2
        for engine in ENGINES:
            held = {workflow: Resident(5000) for where, workflow in resident if where == engine}
            said = {"workflows": held, "capacity_tokens": 100_000} | fields.get(engine, {})
            self.table.see([snapshot(engine, round(self.clock.now * 1000), self.clock.now, **said)])

    def decided(self, asked: EngineCall) -> Decision:
        decision = self.table.decide(asked)
        assert decision is not None
        return decision


@pytest.mark.parametrize("router", ["workflow", "session-hash", "serving.benchmark.routers.power_of_two:PowerOfTwo"])
class TestAnyRouter:
    def test_whoever_asks_for_a_call_gets_one_answer_and_it_counts_once(self, router: str) -> None:
        desk = Desk(router)
        first = desk.decided(call("r"))
        assert all(desk.decided(call("r")) is first for _ in range(20))
        assert sum(desk.table.counts.values()) == 1
        assert desk.table.load() == {engine: int(engine == first.engine) for engine in ENGINES}

    def test_without_engines_there_is_no_answer_and_one_comes_with_the_first(self, router: str) -> None:
        desk = Desk(router)
        desk.table.set_engines([])
        assert desk.table.decide(call("r")) is None
        assert desk.table.engines() == []
        desk.table.set_engines(["b"])
        assert desk.decided(call("r")).engine == "b"

    def test_a_call_whose_engine_is_lost_gets_another_and_the_lost_one_comes_back_later(self, router: str) -> None:
        desk = Desk(router)
        lost = desk.decided(call("r")).engine
        desk.table.drop_engine(lost)
        assert desk.decided(call("r")).engine != lost
        desk.table.set_engines(ENGINES)  # Serve still names it, for it has not noticed
        assert lost not in desk.table.engines()
        desk.clock.now += LOST_S + 0.1
        assert desk.table.engines() == ENGINES

    def test_the_last_engine_is_lost_as_well(self, router: str) -> None:
        desk = Desk(router)
        for engine in ENGINES:
            desk.table.drop_engine(engine)
        assert desk.table.decide(call("r")) is None

    def test_an_engine_that_fails_again_and_again_is_tried_ever_less_often_until_it_answers(self, router: str) -> None:
        desk = Desk(router)
        desk.table.set_engines(["a"])

        def fails() -> float:
            failed = [call("r"), call("s")]
            for one in failed:
                desk.decided(one)
            for one in failed:  # the second is no new failure
                desk.table.lost(one)
                desk.table.over(one)
            begin = desk.clock.now
            while not desk.table.engines():
                desk.clock.now += 0.5
            return desk.clock.now - begin

        expected = [LOST_S * 2 ** min(number, LOST_DOUBLINGS) for number in range(LOST_DOUBLINGS + 3)]
        assert [fails() for _ in expected] == pytest.approx(expected, abs=0.6)
        desk.decided(call("t"))
        desk.table.begun(call("t"), 10)
        assert fails() == pytest.approx(LOST_S, abs=0.6)

    def test_calls_that_an_engine_fails_together_cost_no_other_engine(self, router: str) -> None:
        desk = Desk(router)
        calls = [call(f"r{number}", "one workflow") for number in range(5)]
        by_engine = {one.rid: desk.decided(one).engine for one in calls}
        lost = by_engine["r0"]
        failed = [one for one in calls if by_engine[one.rid] == lost]
        assert [desk.table.lost(one) for one in failed] == [lost, *[None] * (len(failed) - 1)]
        assert desk.table.engines() == [engine for engine in ENGINES if engine != lost]

    def test_a_call_that_is_over_gets_no_engine_when_serve_asks_for_it_late(self, router: str) -> None:
        desk = Desk(router)
        assert desk.decided(call("r")) is desk.table.decide_again(call("r"))
        desk.table.over(call("r"))
        assert desk.table.decide_again(call("r")) is None
        assert desk.table._flights == {}
        assert not any(desk.table._running.values())

    def test_a_call_that_came_before_the_first_engine_gets_it_when_serve_asks_again(self, router: str) -> None:
        desk = Desk(router)
        desk.table.set_engines([])
        assert desk.table.decide(call("r")) is None
        desk.table.set_engines(["b"])
        decision = desk.table.decide_again(call("r"))
        assert decision is not None
        assert decision.engine == "b"
        assert desk.table.begun(call("r"), 10) is decision

    def test_an_engine_that_serve_names_no_more_is_not_waited_for(self, router: str) -> None:
        desk = Desk(router)
        desk.table.drop_engine("a")
        desk.table.set_engines(["b"])
        desk.table.set_engines(ENGINES)
        assert desk.table.engines() == ENGINES


class TestWorkflows:
    def test_a_workflow_goes_where_its_context_is_and_stays(self) -> None:
        desk = Desk()
        desk.see(("b", "w"))
        assert desk.decided(call("r", prompt="x" * 20_000)) == Decision("b", "resident")
        desk.table.over(call("r"))
        desk.see(("b", "w"))
        assert desk.decided(call("s", prompt="x" * 20_000)) == Decision("b", "sticky")
        assert desk.table.engine_of("w") == "b"

    def test_one_that_was_let_in_goes_to_its_place(self) -> None:
        desk = Desk()
        desk.see(("b", "w"))
        assert desk.decided(call("r", wanted="c")) == Decision("c", "admitted")
        assert desk.decided(call("s", wanted="a")).engine == "c"
        desk.table.drop_engine("c")
        assert desk.decided(call("t", wanted="c")).engine != "c"

    def test_stale_snapshots_leave_it_to_the_hash(self) -> None:
        desk = Desk()
        desk.see(("b", "w"))
        desk.clock.now += 60
        assert desk.decided(call("r")).why == "hash"

    def test_idle_workflows_leave_an_engine_that_drains(self) -> None:
        desk = Desk()
        desk.see(("b", "w"))
        assert desk.decided(call("r", prompt="x" * 20_000)).engine == "b"
        desk.table.over(call("r"))
        desk.see(("b", "w"), b={"draining": True})
        desk.table.rehome()
        assert desk.table.counts["rehomed"] == 1
        assert desk.decided(call("s", prompt="x" * 20_000)).engine != "b"

    def test_ended_workflows_count_no_more(self) -> None:
        desk = Desk()
        desk.decided(call("r"))
        desk.table.release("w")
        assert sum(desk.table.load().values()) == 0
        assert desk.table.engine_of("w") is None

    def test_the_longest_unused_is_forgotten_beyond_the_limit(self) -> None:
        table = RoutingTable("session-hash", max_workflows=2)
        table.set_engines(ENGINES)
        for name in ("x", "y", "x", "z"):
            table.decide(call(f"r-{name}-{table.counts}", name))
        assert table.engine_of("y") is None
        assert table.engine_of("x")
        assert table.engine_of("z")


class TestSwitch:
    @pytest.mark.parametrize("router", ["workflow", "session-hash"])
    def test_workflows_stay_where_they_live(self, router: str) -> None:
        desk = Desk("serving.benchmark.routers.power_of_two:PowerOfTwo")
        desk.see()
        homes = {f"w{i}": desk.decided(call(f"r{i}", f"w{i}")).engine for i in range(12)}
        for i in range(12):
            desk.table.over(call(f"r{i}", f"w{i}"))
        desk.table.switch(router)
        again = [desk.decided(call(f"s{i}", f"w{i}")) for i in range(12)]
        assert [one.engine for one in again] == list(homes.values())
        assert {one.why for one in again} == {"sticky"}

    def test_the_new_router_knows_the_newest_snapshots(self) -> None:
        desk = Desk("session-hash")
        desk.see(("c", "w"))
        desk.table.switch("workflow", {"margin_s": 1.0})
        assert desk.decided(call("r", prompt="x" * 20_000)) == Decision("c", "resident")
        assert desk.table.status() == {
            "name": "workflow",
            "parameters": {"margin_s": 1.0},
            "engines": [
                {"id": name, "workflows": here, "running": here, "draining": False, "snapshot_age_s": 0.0}
                for name, here in (("a", 0), ("b", 0), ("c", 1))
            ],
            "counts": {"resident": 1},
        }

    def test_calls_in_flight_stay_and_are_counted_to_their_end(self) -> None:
        desk = Desk()
        before = desk.decided(call("r"))
        desk.table.switch("session-hash")
        assert desk.decided(call("r")) == before
        desk.table.over(call("r"))
        assert [one["running"] for one in desk.table.status()["engines"]] == [0, 0, 0]

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("fastest", {}),
            ("workflow", {"margin_s": "x"}),
            ("workflow", {"horizon_calls": "x"}),
            ("workflow", {"workflows_per_copy": 0}),
            ("workflow", {"name": 1}),
            ("session-hash", {"overload_bound": 0.5}),
            ("session-hash", {"max_workflows": None}),
        ],
    )
    def test_what_cannot_be_made_leaves_the_old_one(self, name: str, parameters: dict[str, Any]) -> None:
        desk = Desk("session-hash")
        with pytest.raises(ValueError, match=f"{name}|overload_bound"):
            desk.table.switch(name, parameters)
        assert desk.table.status()["name"] == "session-hash"

    def test_an_engine_of_which_nothing_was_heard_has_no_age(self) -> None:
        assert {one["snapshot_age_s"] for one in Desk().table.status()["engines"]} == {None}


class TestPrompts:
    def test_token_ids_and_texts_are_told_apart_by_what_they_begin_with(self) -> None:
        table = RoutingTable("serving.benchmark.routers.prefix_affinity:PrefixAffinity")
        table.set_engines(ENGINES)
        for prompt in (list(range(64)), list(range(100, 164)), "one text " * 40, "another text " * 40):
            first, more, other = (
                table._asked(call("r", prompt=asked))[0].pieces for asked in (prompt, prompt + prompt, prompt[1:])
            )
            assert more[: len(first) - 1] == first[:-1]
            assert first[0] != other[0]

    def test_the_length_of_a_piece_does_not_change_with_what_is_learned(self) -> None:
        table = RoutingTable("serving.benchmark.routers.prefix_affinity:PrefixAffinity")
        table.set_engines(ENGINES)
        before = table._asked(call("r", prompt="x" * 999))[0].pieces
        table.decide(call("r", prompt="x" * 999))
        table.begun(call("r"), 999)
        assert table._asked(call("r", prompt="x" * 999))[0].pieces == before

    def test_lengths_are_learned_from_what_engines_count(self) -> None:
        desk = Desk()
        for number in range(100):
            asked = call(f"r{number}", prompt="x" * 1000)
            desk.decided(asked)
            desk.table.begun(asked, 900)
            desk.table.over(asked)
        routed, characters = desk.table._asked(call("s", prompt="x" * 2000))
        assert characters == 2000
        assert routed.prompt_tokens == pytest.approx(1800, rel=0.01)
        assert routed.pieces == ()

    @given(
        st.dictionaries(
            st.sampled_from(["messages", "prompt", "tools"]),
            st.recursive(
                st.none() | st.text(max_size=9) | st.integers(),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "text"]), inner)
                ),
                max_leaves=8,
            ),
        )
    )
    def test_any_body_can_be_routed(self, body: dict[str, Any]) -> None:
        table = RoutingTable("serving.benchmark.routers.prefix_affinity:PrefixAffinity")
        table.set_engines(ENGINES)
        assert table.decide(replace(call("r"), body=body)) is not None


class Story(RuleBasedStateMachine):
    """Whatever happens in whatever order, calls go to engines that are there, and nothing is left of what is over."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.open: dict[str, EngineCall] = {}
        self.number = 0

    @rule(workflow=st.sampled_from("uvwxyz"))
    def come(self, workflow: str) -> None:
        self.number += 1
        asked = call(f"r{self.number}", workflow)
        decision = self.desk.table.decide(asked)
        assert (decision is None) == (not self.desk.table.engines())
        self.open[asked.rid] = asked
        if decision is not None:
            assert decision.engine in self.desk.table.engines()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        asked = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        before = set(self.desk.table.engines())
        lost = self.desk.table.lost(asked)
        assert before - set(self.desk.table.engines()) == ({lost} - {None})

    @rule(number=st.integers(1, 30))
    def ask_again(self, number: int) -> None:
        decision = self.desk.table.decide_again(call(f"r{number}"))
        assert decision is None or (f"r{number}" in self.open and decision.engine in self.desk.table.engines())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.desk.table.over(self.open.pop(data.draw(st.sampled_from(sorted(self.open)))))

    @rule(engine=st.sampled_from(ENGINES))
    def lose(self, engine: str) -> None:
        self.desk.table.drop_engine(engine)

    @rule(engines=st.sets(st.sampled_from(ENGINES)))
    def name(self, engines: set[str]) -> None:
        self.desk.table.set_engines(engines)

    @rule(workflow=st.sampled_from("uvwxyz"))
    def end(self, workflow: str) -> None:
        self.desk.table.release(workflow)

    @rule(seconds=st.sampled_from([0.1, 3.0, 10.0]), draining=st.booleans())
    def pass_time(self, seconds: float, draining: bool) -> None:
        self.desk.clock.now += seconds
        self.desk.see(b={"draining": draining})
        self.desk.table.rehome()

    @invariant()
    def counts_are_those_of_open_calls(self) -> None:
        table = self.desk.table
        assert set(table.load()) == set(table.engines())
        assert all(count >= 0 for count in table._running.values())
        assert sum(table._running.values()) == sum(one is not None for one in table._flights.values())
        assert table._flights.keys() == self.open.keys()


TestStory = Story.TestCase


@pytest.mark.timeout(60)
def test_eight_threads_leave_the_counts_right() -> None:
    table = RoutingTable("workflow")
    table.set_engines(ENGINES)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                asked = call(f"r{number}-{i}", f"w{i % 50}")
                table.decide(asked)
                if i % 7 == 0:
                    table.drop_engine(ENGINES[number % 3])
                elif i % 7 == 1:
                    table.lost(asked)
                elif i % 7 == 3:
                    table.set_engines(ENGINES)
                table.rehome()
                table.over(asked)
                table.decide_again(asked)
                table.totals()
                table.release(f"w{i % 50}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert table._flights == {}
    assert sum(table.load().values()) == 0
    assert not any(table._running.values())


def test_all_who_name_a_table_in_a_process_share_it() -> None:
    assert routing_table("shared here", "session-hash") is routing_table("shared here")
    assert routing_table("shared here") is not routing_table("another", "session-hash")


@pytest.mark.parametrize("name", ["fastest", "serving.routing:Nobody", "no.such.module:Router", "serving.calls:Reply"])
def test_a_router_that_cannot_be_made_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"router '"):
        routing_table(f"never {name}", name)
