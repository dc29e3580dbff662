"""What an engine tells of its workflows: those that are active, their pace, and what is forecast of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import EnginePlan
from cache_actor.policies.base import VALUE_ONE
from predictor_actor.base import HORIZON
from serving.demand import EngineDemand
from serving.scaling import EngineStats

DISCOUNT = 0.8
LIFE_S = 10.0
POOLS = {"free": 400, "evictable": 500, "locked": 100, "device_active": 300, "device_retired": 100}


def demand(max_workflows: int = 100) -> EngineDemand:
    return EngineDemand(DISCOUNT, max_workflows)


def table(chance: float) -> dict[str, int]:
    """Of a workflow that goes on with this chance after each call."""
    value = sum(DISCOUNT**k * chance ** (k + 1) for k in range(HORIZON))
    return {"coder": round(value * VALUE_ONE / 2), "tester": round(value * VALUE_ONE / 2)}


def plan(tables: dict[str, dict[str, int] | None], renew: bool = False) -> EnginePlan:
    return EnginePlan(1, LIFE_S, [], tables, [], renew=renew)


def paced(engine: EngineDemand, workflow: str = "w", gap_s: float = 6.0, calls: int = 4, took_s: float = 2.0) -> float:
    """Calls of a workflow, `gap_s` apart from 0 on; when the last one is over."""
    for number in range(calls):
        engine.began(f"{workflow}{number}", workflow, 100, number * gap_s)
        engine.over(f"{workflow}{number}", number * gap_s + took_s)
    return (calls - 1) * gap_s + took_s


class TestWorkflows:
    def test_nothing_is_asked_of_a_new_engine(self) -> None:
        assert demand().stats(0, 0.0, None, 5.0) == EngineStats()

    def test_one_is_active_while_it_calls_and_for_a_minute_from_its_last_call(self) -> None:
        engine = demand()
        engine.began("a", "w", 10, 0.0)
        assert engine.stats(0, 0.0, None, 100.0).workflows == 1
        engine.over("a", 100.0)
        assert engine.stats(0, 0.0, None, 100.0).workflows == 0
        engine.began("b", "w", 10, 200.0)
        engine.over("b", 201.0)
        assert engine.stats(0, 0.0, None, 259.0).workflows == 1
        assert engine.stats(0, 0.0, None, 260.0).workflows == 0

    def test_one_that_has_ended_is_not(self) -> None:
        engine = demand()
        now = paced(engine)
        engine.end("w")
        assert engine.stats(0, 0.0, None, now).workflows == 0

    def test_a_call_that_failed_before_it_began_or_ends_twice_changes_nothing(self) -> None:
        engine = demand()
        engine.over("nobody", 1.0)
        engine.began("a", "w", 10, 2.0)
        engine.over("a", 3.0)
        engine.over("a", 4.0)
        assert engine.stats(0, 0.0, None, 4.0).calls == 0
        assert engine.stats(0, 0.0, None, 4.0).call_s == 1.0

    @given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
    def test_no_more_are_remembered_than_the_limit(self, steps: list[tuple[int, bool]]) -> None:
        engine = demand(max_workflows=5)
        running: dict[int, str] = {}
        for now, (number, begins) in enumerate(steps):
            if begins:
                engine.began(f"r{now}", f"w{number}", 1, float(now))
                running[number] = f"r{now}"
            else:
                engine.over(running.pop(number, "nobody"), float(now))
        stats = engine.stats(0, 0.0, None, float(len(steps)))
        assert stats.workflows <= 5 + stats.calls


class TestForecast:
    def test_without_a_forecast_the_pace_goes_on(self) -> None:
        engine = demand()
        now = paced(engine, gap_s=6.0)
        assert engine.stats(0, 0.0, None, now).next_minute == pytest.approx(10)
        assert engine.stats(0, 0.0, None, now).call_s == pytest.approx(2.0)

    def test_a_pause_makes_it_slower(self) -> None:
        engine = demand()
        now = paced(engine, gap_s=6.0)
        assert engine.stats(0, 0.0, None, now + 28.0).next_minute == pytest.approx(2)

    def test_of_a_workflow_that_has_called_once_one_more_call_is_expected(self) -> None:
        engine = demand()
        engine.began("a", "w", 10, 0.0)
        assert engine.stats(0, 0.0, None, 1.0).next_minute == pytest.approx(1)

    @pytest.mark.parametrize(("chance", "calls"), [(1.0, 10), (0.5, 1.0), (0.0, 0.0)])
    def test_a_table_says_how_far_the_workflow_goes(self, chance: float, calls: float) -> None:
        engine = demand()
        now = paced(engine, gap_s=6.0)
        engine.expect(plan({"w": table(chance), "unknown": table(1.0)}), now)
        assert engine.stats(0, 0.0, None, now).next_minute == pytest.approx(calls, rel=0.02, abs=1e-6)

    def test_a_table_that_is_taken_back_leaves_the_pace(self) -> None:
        engine = demand()
        now = paced(engine, gap_s=6.0)
        engine.expect(plan({"w": table(0.0)}), now)
        engine.expect(plan({"w": None}), now)
        assert engine.stats(0, 0.0, None, now).next_minute == pytest.approx(10)

    def test_a_table_that_nobody_renews_lapses(self) -> None:
        engine = demand()
        now = paced(engine, gap_s=30.0)
        engine.expect(plan({"w": table(0.0)}), now)
        assert engine.stats(0, 0.0, None, now + LIFE_S - 1).next_minute == 0
        engine.expect(plan({}, renew=True), now + LIFE_S - 1)
        engine.expect(plan({}), now + LIFE_S - 1)
        assert engine.stats(0, 0.0, None, now + 2 * LIFE_S - 2).next_minute == 0
        assert engine.stats(0, 0.0, None, now + 2 * LIFE_S).next_minute == pytest.approx(2)

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_one_that_is_likelier_to_go_on_is_expected_to_call_more(self, one: float, other: float) -> None:
        figures = []
        for chance in sorted((one, other)):
            engine = demand()
            now = paced(engine)
            engine.expect(plan({"w": table(chance)}), now)
            figures.append(engine.stats(0, 0.0, None, now).next_minute)
        assert figures[0] <= figures[1] + 1e-6


class TestPoolsAndPrompts:
    def test_the_latest_calls_are_those_that_wait(self) -> None:
        engine = demand()
        for number, tokens in enumerate((1, 20, 300)):
            engine.began(f"r{number}", f"w{number}", tokens, float(number))
        assert [engine.stats(waiting, 0.0, None, 3.0).pending_tokens for waiting in range(5)] == [0, 300, 320, 321, 321]

    def test_the_share_of_the_pool_that_living_workflows_fill(self) -> None:
        assert demand().stats(0, 0.0, POOLS, 0.0).active_share == pytest.approx(0.3)
        assert demand().stats(0, 0.0, POOLS | {"device_active": 2000}, 0.0).active_share == 1.0

    def test_without_pools_or_who_is_in_them_it_is_not_known(self) -> None:
        for pools in (None, {}, {"free": 0, "evictable": 0, "locked": 0, "device_active": 0}):
            assert demand().stats(0, 0.0, pools, 0.0).active_share is None
