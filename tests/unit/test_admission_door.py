"""The door of the ingress: calls that wait, limits that come and go, and what waiting clients are told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from cache_actor.admission_messages import AdmissionAnswer, IdleWorkflow
from cache_actor.messages import RequestIdentity
from serving.admission import Admission, Ticket
from serving.admission_metrics import AdmissionMetrics
from serving.calls import JSON, SSE, EngineCall, Reply
from serving.config import AdmissionConfig
from serving.errors import ApiError
from serving.held_calls import answer


class Door(Admission):
    """An admission whose clock and engines are set by hand."""

    def __init__(self, metrics: AdmissionMetrics | None = None, **config: Any) -> None:
        self.now = 100.0
        self.there = ["e0", "e1"]
        settings = AdmissionConfig(**config)
        super().__init__(settings, lambda: self.there, retry_after_s=2, metrics=metrics, clock=lambda: self.now)
        self.refresh()


def call_of(workflow: str, **fields: Any) -> RequestIdentity:
    return RequestIdentity(workflow, "agent", **({"source": "header"} | fields))


def enter(door: Admission, *workflows: str) -> list[Ticket]:
    return [door.ask(call_of(workflow)) for workflow in workflows]


def answered(door: Admission, ticket: Ticket) -> None:
    ticket.lasting = True
    door.leave(ticket)


class TestModes:
    async def test_while_nobody_has_said_anything_everybody_goes_where_the_router_says(self) -> None:
        tickets = enter(Door(), *"abcdef")
        assert [(ticket.held, ticket.engine) for ticket in tickets] == [(False, None)] * 6

    async def test_limits_of_the_coordinator_hold_until_they_are_stale(self) -> None:
        door = Door(stale_after_s=10)
        door.apply(AdmissionAnswer({"e0": 1, "e1": 1}, []))
        first, second, third = enter(door, *"abc")
        assert {first.engine, second.engine} == {"e0", "e1"}
        assert third.held
        door.now += 10.0
        door.refresh()
        assert third.held
        door.now += 0.1
        door.refresh()
        assert not third.held
        assert await door.goes(third)
        assert third.queue_ms == 10_100

    async def test_a_number_holds_whatever_the_coordinator_says_and_off_lets_all_in(self) -> None:
        door = Door(mode=1)
        door.apply(AdmissionAnswer({"e0": None, "e1": 7}, []))
        tickets = enter(door, *"abcde")
        assert [ticket.held for ticket in tickets] == [False, False, True, True, True]
        door.switch("off")
        assert not any(ticket.held for ticket in tickets)
        door.switch("on")
        assert door.status()["engines"][1] == {"id": "e1", "limit": 7, "admitted": 2}

    async def test_of_a_number_each_ingress_has_the_share_that_the_coordinator_gives_it(self) -> None:
        door = Door(mode=4, stale_after_s=10)
        door.apply(AdmissionAnswer({"e0": 3, "gone": 1}, [], 4))
        assert [engine["limit"] for engine in door.status()["engines"]] == [3, 4]
        door.apply(AdmissionAnswer({"e0": 3}, [], "on"))
        assert [engine["limit"] for engine in door.status()["engines"]] == [4, 4]
        door.apply(AdmissionAnswer({"e0": 3}, [], 4))
        door.now += 11.0
        door.refresh()
        assert [engine["limit"] for engine in door.status()["engines"]] == [4, 4]

    async def test_a_switch_at_another_ingress_is_followed_unless_it_is_older_than_the_own(self) -> None:
        door = Door()
        before = time.time()
        door.apply(AdmissionAnswer({}, [], 2, before))
        assert (door.mode, door.report().mode, door.report().switched) == (2, 2, before)
        door.switch("off")
        assert door.report().switched > before
        door.apply(AdmissionAnswer({}, [], 2, before))
        assert door.mode == "off"
        for odd in ("sometimes", 0):
            door.apply(AdmissionAnswer({}, [], odd, time.time() + 10))
            assert door.mode == "off"

    async def test_a_switch_is_later_than_the_one_before_whatever_the_clock_says(self) -> None:
        door = Door()
        ahead = time.time() + 100
        door.apply(AdmissionAnswer({}, [], 2, ahead))
        door.switch("on")
        assert door.report().switched > ahead

    async def test_an_engine_without_a_word_about_it_has_no_limit(self) -> None:
        door = Door()
        door.apply(AdmissionAnswer({"e0": 1, "gone": 3}, []))
        assert [ticket.engine for ticket in enter(door, *"abcd")] == ["e1", "e1", "e1", "e1"]

    async def test_while_no_engine_is_there_those_who_wait_go_on_waiting(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        (held,) = enter(door, "c")
        door.there = []
        door.refresh()
        door.over("a")
        assert held.held, "a place where nobody answers is none"
        door.there = ["e2"]
        door.refresh()
        assert held.engine == "e2"

    async def test_nobody_waits_for_ever_for_the_first_engine_to_come_back(self) -> None:
        door = Door(mode=1, max_wait_s=60)
        enter(door, *"ab")
        (held,) = enter(door, "c")
        door.there = []
        door.now += 59
        door.refresh()
        assert held.held
        door.now += 2
        door.refresh()
        assert not held.held

    async def test_an_engine_that_has_just_come_counts_from_its_first_answer(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        door.there = ["e0", "e1", "e2"]
        door.placed("a", "e2")
        assert [(engine["id"], engine["admitted"]) for engine in door.status()["engines"]] == [
            ("e0", 0),
            ("e1", 1),
            ("e2", 1),
        ]

    async def test_the_last_word_of_an_engine_that_is_gone_lets_nobody_in_there(self) -> None:
        door = Door(mode=1)
        first, second = enter(door, *"ab")
        held = enter(door, *"cd")
        door.there = ["e1"]
        door.placed(first.workflow, "e0")
        for ticket in (first, second):
            answered(door, ticket)
        assert [ticket.held for ticket in held] == [True, True]
        door.over("b")
        assert [(ticket.held, ticket.engine) for ticket in held] == [(False, "e1"), (True, None)]

    @pytest.mark.parametrize(("written", "meant"), [(True, "on"), (False, "off"), ("on", "on"), (3, 3)])
    def test_a_mode_as_yaml_reads_it(self, written: Any, meant: Any) -> None:
        assert AdmissionConfig(mode=written).mode == meant

    @pytest.mark.parametrize("mode", [0, -1, "sometimes", 1.5])
    def test_other_modes_are_refused(self, mode: Any) -> None:
        with pytest.raises(ValidationError):
            AdmissionConfig(mode=mode)


class TestHeld:
    async def test_a_held_call_goes_when_a_place_is_free(self) -> None:
        door = Door(mode=1)
        first, second = enter(door, *"ab")
        (held,) = enter(door, "c")
        waits = asyncio.ensure_future(door.goes(held))
        await asyncio.sleep(0)
        answered(door, first)
        assert held.held, "an idle workflow keeps its place"
        door.over("b")
        assert await waits
        assert held.engine == second.engine

    async def test_a_client_that_leaves_frees_its_place_in_the_queue_at_once(self) -> None:
        door = Door(mode=1, max_waiting=1)
        enter(door, *"ab")
        (held,) = enter(door, "c")
        with pytest.raises(ApiError) as caught:
            door.ask(call_of("d"))
        assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "queue_full", 2)
        door.leave(held)
        assert (door.waiting, door.status()["held"]) == (0, 0)
        assert door.ask(call_of("d")).held

    async def test_a_call_that_its_client_gave_up_and_one_of_no_named_workflow_give_way(self) -> None:
        for lasting in (True, False):
            door = Door(mode=1)
            first, _ = enter(door, *"ab")
            (held,) = enter(door, "c")
            first.lasting = lasting
            door.leave(first)
            assert held.held == lasting

    async def test_the_end_of_a_workflow_fails_its_held_calls_and_spares_its_next(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        held, other = door.ask(call_of("c")), door.ask(call_of("c"))
        door.over("c")
        for ticket in (held, other):
            with pytest.raises(ApiError) as caught:
                await door.goes(ticket)
            assert (caught.value.status, caught.value.code) == (410, "workflow_ended")
            door.leave(ticket)
        assert door.ask(call_of("c")).held

    async def test_what_waits_is_told_its_place(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        enter(door, *"cd")
        door.now += 5
        queued = door.queued("d")
        assert queued is not None
        assert (queued.place, queued.waiting, queued.waited_s, queued.estimate_s) == (2, 2, 5.0, None)
        assert door.queued("a") is None

    async def test_the_cheapest_is_paused_by_what_the_coordinator_knows(self) -> None:
        door = Door(pause_after_s=0, mode=2)
        door.there = ["e0"]
        door.refresh()
        for ticket in enter(door, *"ab"):
            answered(door, ticket)
        door.switch("on")
        facts = [IdleWorkflow("a", 10, 60.0, 5.0), IdleWorkflow("b", 9000, 1.0, 1.0)]
        door.apply(AdmissionAnswer({"e0": 1}, facts))
        assert (door.ask(call_of("b")).held, door.ask(call_of("a")).held) == (False, True)
        report = door.report()
        assert (report.admitted, report.held, report.paused) == ({"e0": 1}, {"e0": 1}, ["a"])
        assert [(event.workflow, event.what, event.engine) for event in report.events] == [
            ("a", "paused", "e0"),
            ("a", "held", "e0"),
        ]
        assert abs(report.events[0].at - time.time()) < 10
        again = door.report()
        assert (again.number, again.events) == (report.number + 1, [])

    async def test_a_thousand_clients_that_come_and_leave_at_random_leak_no_place(self) -> None:
        draw = random.Random(5)
        door = Door(mode=4, idle_s=20)
        clients: list[asyncio.Task[None]] = []

        async def client(number: int) -> None:
            ticket = door.ask(call_of(f"w{number}", tenant=f"t{number % 3}"))
            try:
                if ticket.held:
                    await door.goes(ticket)
                for _ in range(draw.randint(0, 5)):
                    await asyncio.sleep(0)
                ticket.lasting = draw.random() < 0.5
            finally:
                door.leave(ticket)
                if draw.random() < 0.6:
                    door.over(f"w{number}")

        for number in range(1000):
            clients.append(asyncio.ensure_future(client(number)))
            await asyncio.sleep(0)
            door.now += draw.random()
            door.refresh()
            if draw.random() < 0.4:
                draw.choice(clients).cancel()
        while door.status()["held"]:
            door.now += 1.0
            door.refresh()
            await asyncio.sleep(0)
        assert all(result is None for result in await asyncio.gather(*clients, return_exceptions=True) if not result)
        for number in range(1000):
            door.over(f"w{number}")
        report = door.report()
        assert (report.admitted, report.held, report.paused) == ({"e0": 0, "e1": 0}, {}, [])
        assert (door.waiting, door.status()["held_calls"], door.status()["tenants"]) == (0, 0, [])


class Engines:
    """Stands in for `EngineCalls`: answers as told, and remembers what was wanted."""

    def __init__(self, *parts: Reply | bytes | ApiError) -> None:
        self.parts_to_say = parts
        self.wanted: list[str | None] = []

    async def parts(self, call: EngineCall) -> AsyncGenerator[Reply | bytes, None]:
        self.wanted.append(call.wanted)
        for part in self.parts_to_say:
            if isinstance(part, ApiError):
                raise part
            yield part


class TestAnswers:
    @staticmethod
    def parts_of(door: Door, engines: Engines, stream: bool, **identity: Any) -> tuple[Ticket, Any]:
        who = call_of("c", **identity)
        call = EngineCall("chat", {"stream": stream}, who, "rid")
        ticket = door.ask(who)
        return ticket, answer(call, ticket, door, engines, keep_alive_s=0.01)  # type: ignore[arg-type]

    async def test_a_stream_that_is_held_begins_at_once_and_goes_on_with_the_engines(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        engines = Engines(Reply(200, SSE, "e1", b"data: one\n\n"), b"data: two\n\n")
        ticket, parts = self.parts_of(door, engines, stream=True)
        first = await anext(parts)
        assert (first.status, first.media_type, first.engine) == (200, SSE, "")
        assert first.body == b": queued place=1 waiting=1\n\n"
        assert await anext(parts) == first.body
        assert not engines.wanted
        door.now += 2.5
        door.over("b")
        rest = [part async for part in parts]
        assert rest == [b": let in x-forecache-queue-ms=2500\n\n", *engines.parts_to_say]
        assert engines.wanted == ["e1"]
        assert ticket.lasting

    async def test_a_plain_call_waits_and_then_is_the_engines_reply(self) -> None:
        door = Door(mode=1)
        enter(door, *"ab")
        ticket, parts = self.parts_of(door, Engines(Reply(200, JSON, "e0", b"{}")), stream=False)
        coming = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        assert not coming.done()
        door.over("a")
        assert (await coming).engine == "e0"
        await parts.aclose()
        assert ticket.lasting

    async def test_a_call_that_is_not_held_is_passed_on_as_it_is(self) -> None:
        engines = Engines(Reply(200, SSE, "e0", b"data: one\n\n"), b"data: two\n\n")
        _, parts = self.parts_of(Door(), engines, stream=True)
        assert tuple([part async for part in parts]) == engines.parts_to_say

    @pytest.mark.parametrize(("source", "lasting"), [("header", True), ("inferred", False)])
    async def test_only_named_workflows_are_expected_to_go_on(self, source: str, lasting: bool) -> None:
        for said in (Reply(400, JSON, "e0", b"{}"), ApiError(503, "it went")):
            ticket, parts = self.parts_of(Door(), Engines(said), stream=False, source=source)
            with contextlib.suppress(ApiError):
                await anext(parts)
            assert ticket.lasting == lasting

    async def test_a_stream_whose_client_goes_is_not_expected_to_go_on(self) -> None:
        ticket, parts = self.parts_of(Door(), Engines(Reply(200, SSE, "e0", b"data: one\n\n"), b"two"), stream=True)
        await anext(parts)
        await parts.aclose()
        assert not ticket.lasting


class Recorded:
    """What `ray.util.metrics` makes, and what became of it."""

    def __init__(self, name: str, text: str, boundaries: Any = None, tag_keys: tuple[str, ...] = ()) -> None:
        self.name, self.tag_keys, self.values = name, tag_keys, list[tuple[float, Mapping[str, str] | None]]()

    def record(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        assert set(tags or {}) == set(self.tag_keys)
        self.values.append((value, tags))

    set = inc = observe = record


async def test_figures_grow_by_what_has_happened() -> None:
    made: dict[str, Recorded] = {}

    def make(name: str, *arguments: Any, **keywords: Any) -> Recorded:
        assert name not in made
        made[name] = Recorded(name, *arguments, **keywords)
        return made[name]

    metrics = AdmissionMetrics(SimpleNamespace(Gauge=make, Counter=make, Histogram=make))
    door = Door(metrics, mode=1, max_waiting=1)
    enter(door, *"abc")
    with pytest.raises(ApiError):
        door.ask(call_of("d"))
    door.now += 4
    door.over("a")
    for _ in range(2):
        metrics.show(3, 2, door._gate.counts)
    values = {name.removeprefix("forecache_admission_"): one.values for name, one in made.items() if one.values}
    assert values["refused"] == [(1, {"reason": "full"})]
    assert values["waits"] == values["let_in"] == [(1, None)]
    assert values["wait_seconds"] == [(4.0, None)]
    assert values["held"] == [(3, None), (3, None)]


async def test_calls_that_nothing_holds_cost_microseconds() -> None:
    """The budget is ten times what was measured."""
    door = Door()
    who = [call_of(f"w{number}") for number in range(200)]
    began = time.perf_counter()
    for number in range(20_000):
        ticket = door.ask(who[number % 200])
        answered(door, ticket)
    assert (time.perf_counter() - began) / 20_000 < 100e-6
