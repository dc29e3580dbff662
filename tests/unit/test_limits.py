"""How limits move: an engine of a few lines that wastes work when too many are inside."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from cache_actor.admission import LimitController, Signals, make_controller
from cache_actor.admission.pressure import CALM_S

FOUND = ("miss-curve", "balance", "aimd", "working-set", "pause", "gradient")
CONTEXT = 1000


class Engine:
    """Holds the contexts of `room` workflows of 1,000 tokens; of what is inside beyond that, all is computed again.

    It always has 60 workflows to run, of which those wait that are not let in. Each wants 20 new tokens a second, and
    so does its answer; a second of prefill brings 3,000. It decodes for the share `decode` of the time, or for as much
    as prefill leaves. `stray` tokens of workflows that have ended are computed again each second, whoever is inside.
    """

    def __init__(self, room: int = 12, wanted: int = 60, stray: int = 0, decode: float = 1.0) -> None:
        self.room, self.wanted, self.stray, self.decode = room, wanted, stray, decode
        self.now = Signals(0.0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, room * CONTEXT, 0)

    def run(self, controller: LimitController, seconds: int) -> list[int | None]:
        """The limit after each second."""
        limits: list[int | None] = []
        for _ in range(seconds):
            limit = controller.observe(self.now)
            inside = self.wanted if limit is None else min(limit, self.wanted)
            evicted = 0 if inside <= self.room else (inside - self.room) / inside
            again = round(inside * evicted * CONTEXT / 4) + self.stray
            new = 20 * inside
            prefill = min(1.0, (new + again) / 3000)
            done = min(1.0, 3000 / max(1, new + again))
            self.now = replace(
                self.now,
                at=self.now.at + 1.0,
                admitted=inside,
                held=self.wanted - inside,
                prefill_s=self.now.prefill_s + prefill,
                busy_s=self.now.busy_s + min(1.0, prefill + self.decode),
                computed=self.now.computed + round(done * (new + again)),
                regret=self.now.regret + round(done * again),
                reused=self.now.reused + round(done * inside * (1.0 - evicted) * CONTEXT / 4),
                output=self.now.output + round(done * new),
                working_set=inside * CONTEXT,
            )
            limits.append(limit)
        return limits


@pytest.mark.parametrize("name", FOUND)
class TestEveryLimitThatIsFound:
    def test_too_many_are_no_longer_let_in_within_seconds(self, name: str) -> None:
        limits = Engine().run(make_controller(name), 20)
        assert limits[0] is None
        assert limits[-1] is not None
        assert limits[-1] < 60

    def test_settles_where_little_is_computed_again(self, name: str) -> None:
        settled = [limit for limit in Engine().run(make_controller(name), 600)[-200:] if limit is not None]
        assert settled
        assert 4 <= sum(settled) / len(settled) <= 30

    def test_has_no_limit_when_the_crowd_has_gone(self, name: str) -> None:
        engine, controller = Engine(), make_controller(name)
        engine.run(controller, 120)
        engine.wanted = 3
        assert engine.run(controller, 10 * int(CALM_S))[-1] is None

    def test_everything_fits_and_nobody_is_held(self, name: str) -> None:
        assert set(Engine(room=80).run(make_controller(name), 300)) == {None}


class TestMissCurve:
    @pytest.mark.parametrize("room", [6, 12, 20, 30])
    def test_settles_between_what_fits_and_twice_that_whatever_it_is(self, room: int) -> None:
        settled = [limit or 60 for limit in Engine(room).run(make_controller("miss-curve"), 600)[-200:]]
        assert room <= min(settled)
        assert max(settled) <= 2 * room

    def test_what_ended_workflows_have_left_and_is_missed_limits_nobody(self) -> None:
        engine, controller = Engine(stray=150, decode=0.5), make_controller("miss-curve")
        for wanted in (4, 11) * 40:
            engine.wanted = wanted
            assert set(engine.run(controller, 3)) == {None}

    def test_nobody_is_kept_waiting_by_an_engine_that_has_idle_time(self) -> None:
        engine, controller = Engine(decode=0.0), make_controller("miss-curve")
        limits = [limit or 60 for limit in engine.run(controller, 600)[-200:]]
        fills_its_time = 20  # 400 new tokens a second and 2,000 computed again, of 3,000
        assert sum(limits) / len(limits) >= fills_its_time

    def test_a_limit_that_keeps_nobody_out_is_forgotten_while_little_is_computed_again(self) -> None:
        engine, controller = Engine(), make_controller("miss-curve")
        engine.run(controller, 120)
        engine.wanted, engine.stray = 3, 30
        assert engine.run(controller, 300)[-1] is None

    def test_the_second_look_at_a_crowd_already_limits_it(self) -> None:
        limits = Engine().run(make_controller("miss-curve"), 5)
        assert limits[0] is None
        assert limits[1] is not None
        assert limits[1] < 30

    def test_the_more_it_takes_misses_to_react_the_fewer_it_lets_in(self) -> None:
        def settled(least: float) -> int:
            return Engine().run(make_controller("miss-curve", {"least": least}), 600)[-1] or 60

        assert settled(0.5) >= settled(3.0) > settled(8.0)

    def test_longer_contexts_leave_less_room_at_once(self) -> None:
        engine, controller = Engine(), make_controller("miss-curve")
        before = engine.run(controller, 300)[-1]
        assert before is not None
        after = controller.observe(replace(engine.now, at=engine.now.at + 1, working_set=3 * engine.now.working_set))
        assert after is not None
        assert after < 0.8 * before

    def test_who_waits_inside_the_engine_adds_nothing(self) -> None:
        def settled(waiting: int) -> int:
            engine = Engine()
            engine.now = replace(engine.now, waiting_calls=waiting)
            return engine.run(make_controller("miss-curve"), 300)[-1] or 60

        assert settled(8) < settled(0)

    def test_says_why(self) -> None:
        engine, controller = Engine(), make_controller("miss-curve")
        engine.run(controller, 60)
        assert {"recomputing", "missed", "inside", "best", "reaction", "number"} <= controller.explain().keys()


class TestBalance:
    def test_a_heavier_weight_lets_in_fewer(self) -> None:
        def settled(weight: float) -> float:
            limits = Engine().run(make_controller("balance", {"weight": weight}), 900)[-300:]
            return sum(limit or 60 for limit in limits) / len(limits)

        assert settled(1.0) > settled(4.0) > settled(16.0)

    def test_longer_contexts_leave_less_room_at_once(self) -> None:
        engine, controller = Engine(), make_controller("balance")
        before = engine.run(controller, 300)[-1]
        assert before is not None
        after = controller.observe(replace(engine.now, working_set=3 * engine.now.working_set))
        assert after is not None
        assert after < 0.7 * before

    def test_says_why(self) -> None:
        engine, controller = Engine(), make_controller("balance")
        engine.run(controller, 60)
        assert {"idle", "recomputing", "gain", "share", "number"} <= controller.explain().keys()


class TestAimd:
    def test_halves_when_full_and_losing_and_adds_one_when_not(self) -> None:
        limits = [limit for limit in Engine().run(make_controller("aimd"), 400) if limit is not None]
        steps = {after - before for before, after in pairwise(limits)}
        assert limits[0] == 30
        assert min(steps) < -5
        assert 1 <= max(steps) <= 2  # one, and what rounding adds


class TestWorkingSet:
    def test_is_what_the_larger_tier_holds(self) -> None:
        engine = Engine()
        engine.now = replace(engine.now, host_tokens=20 * CONTEXT)
        assert engine.run(make_controller("working-set"), 300)[-1] == 20


class TestPause:
    def test_counts_the_device_alone_and_keeps_a_little_free(self) -> None:
        engine = Engine()
        engine.now = replace(engine.now, host_tokens=20 * CONTEXT)
        assert engine.run(make_controller("pause"), 300)[-1] == 10
