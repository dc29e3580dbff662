"""Plans: what is in them, when there is one, and what the modes let through."""

from __future__ import annotations

from coordinator_reports import MadeUpEngine, began, cache_report, certain, over

from cache_actor.cluster import PRESSURE_S, Cluster
from cache_actor.decisions import in_words
from cache_actor.forecast import compiled
from cache_actor.messages import EnginePlan, Receipt
from cache_actor.planner import MAX_NEWS, Mode, Planner, PlannerConfig
from cache_actor.policies.base import VALUE_ONE
from cache_actor.runtime import Runtime
from cache_actor.runtime_policies import RUNTIME_POLICIES, make_runtime_policies
from cache_actor.runtime_policies.kv_prefetch import IN_FLIGHT
from cache_actor.state import EngineState

TTL_S = 10.0


class Desk:
    """One engine and its planner; the predictor is sure of `coming`."""

    def __init__(self, mode: Mode = "on") -> None:
        self.cluster = Cluster()
        self.planner = Planner(
            self.cluster, Runtime(make_runtime_policies(list(RUNTIME_POLICIES))), PlannerConfig(TTL_S, 100), mode
        )
        self.engine = MadeUpEngine()
        self.now = 100.0

    @property
    def state(self) -> EngineState:
        return self.cluster.engines["e"]

    def hear(self, *events: object, coming: str = "tester", **fields: object) -> EnginePlan | None:
        """The plan after a report."""
        self.cluster.hear(self.engine.report(*events, **fields), self.now)  # type: ignore[arg-type]
        self.forecast(coming)
        return self.planner.plan(self.state, self.now)

    def forecast(self, coming: str) -> None:
        begun, asked, _ = self.cluster.take(1000)
        prefixes = [*begun, *asked]
        agents = ["coder", "tester", "planner"]
        made = compiled(certain(prefixes, agents, coming), [one.length for one in prefixes], 0.5, self.now)
        for prefix, forecast in zip(prefixes, made, strict=True):
            self.cluster.expect(prefix.workflow, forecast, self.now)


class TestPlan:
    def test_a_call_that_began_is_answered_with_what_it_makes_things_worth(self) -> None:
        plan = Desk().hear(began("w"))
        assert plan is not None
        assert plan.tables == {"w": {"tester": round(1.75 * VALUE_ONE)}}
        assert plan.time_to_live_s == TTL_S

    def test_numbers_rise_beyond_those_that_the_engine_has_applied(self) -> None:
        desk = Desk()
        first = desk.hear(began("w"), applied=41)
        second = desk.hear(began("v"))
        assert first is not None
        assert second is not None
        assert (first.plan, second.plan) == (42, 43)

    def test_nothing_new_is_no_plan_until_it_is_time_to_renew(self) -> None:
        desk = Desk()
        desk.hear(began("w"))
        assert desk.hear() is None
        desk.now += TTL_S / 2
        plan = desk.hear()
        assert plan is not None
        assert plan.renew
        assert plan.tables == {}

    def test_a_forecast_that_says_the_same_is_not_sent_twice(self) -> None:
        desk = Desk()
        desk.hear(began("w"))
        assert desk.hear(over("w"), began("w")) is None
        changed = desk.hear(over("w"), began("w"), coming="planner")
        assert changed is not None
        assert set(changed.tables["w"] or ()) == {"planner"}

    def test_ends_elsewhere_are_passed_on_once(self) -> None:
        desk, other = Desk(), MadeUpEngine("other")
        desk.hear(began("w"))
        desk.cluster.hear(other.report(began("w")), desk.now)
        desk.cluster.hear(other.report(ended={"w": "final"}), desk.now)
        plan = desk.hear()
        assert plan is not None
        assert plan.ends == ["w"]
        assert desk.hear() is None

    def test_a_plan_is_of_bounded_size_and_the_rest_comes_with_the_next(self) -> None:
        desk = Desk()
        first = desk.hear(*[began(f"w{number}") for number in range(MAX_NEWS + 10)])
        second = desk.hear()
        assert first is not None
        assert second is not None
        assert (len(first.tables), len(second.tables)) == (MAX_NEWS, 10)

    def test_an_engine_that_may_have_missed_something_is_told_again(self) -> None:
        desk = Desk()
        desk.hear(began("w"))
        next(desk.engine.numbers)
        plan = desk.hear()
        assert plan is not None
        assert "w" in plan.tables


class TestPressure:
    def test_an_engine_that_evicts_nothing_alive_is_told_when_it_does(self) -> None:
        desk = Desk()
        desk.engine.calm = True
        for plan in (desk.hear(began("w"), began("v")), desk.hear(over("v"), ended={"v": "final"})):
            assert plan is None or not plan.tables
        desk.engine.calm = False
        plan = desk.hear()
        assert plan is not None
        assert set(plan.tables) == {"w"}

    def test_pressure_lasts_for_a_while(self) -> None:
        desk = Desk()
        desk.hear(began("w"))
        desk.engine.calm = True
        desk.now += PRESSURE_S / 2
        plan = desk.hear(began("v"))
        assert plan is not None
        assert "v" in plan.tables
        desk.now += PRESSURE_S
        later = desk.hear(began("u"))
        assert later is None or not later.tables


class TestPrefetch:
    def paused(self, desk: Desk, workflows: int = 1, host: int = 500) -> EnginePlan | None:
        names = [f"w{number}" for number in range(workflows)]
        desk.hear(*[began(name) for name in names])
        held = {name: [100, host] for name in names}
        return desk.hear(*[over(name) for name in names], cache=[cache_report(residency=held)])

    def test_what_is_on_the_host_is_ordered_for_the_next_agent(self) -> None:
        plan = self.paused(Desk())
        assert plan is not None
        (order,) = plan.prefetches
        assert (order.workflow, order.agent, order.max_tokens, order.value) == ("w0", "tester", 500, VALUE_ONE)
        assert order.order >= 100

    def test_nothing_is_ordered_for_a_running_call_or_for_what_is_on_the_device(self) -> None:
        desk = Desk()
        plan = desk.hear(began("w"), cache=[cache_report(residency={"w": [100, 500]})])
        assert plan is not None
        assert not plan.prefetches
        quiet = self.paused(Desk(), host=0)
        assert quiet is None or not quiet.prefetches

    def test_no_more_than_a_few_are_in_flight_until_receipts_come(self) -> None:
        desk = Desk()
        plan = self.paused(desk, workflows=IN_FLIGHT + 3)
        assert plan is not None
        assert len(plan.prefetches) == IN_FLIGHT
        waiting = [order.order for order in plan.prefetches]
        more = desk.hear(over("w9"))
        assert more is None or not more.prefetches
        receipts = [Receipt(number, "accepted", 500, "") for number in waiting]
        desk.hear(cache=[cache_report(receipts=receipts)])
        assert not desk.state.orders

    def test_orders_whose_receipts_were_lost_do_not_block_for_ever(self) -> None:
        desk = Desk()
        self.paused(desk, workflows=IN_FLIGHT)
        assert len(desk.state.orders) == IN_FLIGHT
        desk.now += 60
        desk.hear()
        assert not desk.state.orders


class TestModes:
    def test_shadow_plans_accounts_and_logs_and_sends_nothing(self) -> None:
        desk = Desk("shadow")
        plan = desk.hear(began("w"))
        assert plan is None
        assert desk.planner.counts["shadow_tables"] == 1
        assert any("would: " in in_words(one) for one in desk.cluster.workflows["w"].decisions)

    def test_off_takes_back_what_was_told_once(self) -> None:
        desk = Desk()
        desk.hear(began("w"), began("v"))
        desk.planner.switch("off")
        plan = desk.hear()
        assert plan is not None
        assert plan.tables == {"w": None, "v": None}
        assert not plan.renew
        assert desk.hear() is None
        assert desk.hear(began("w")) is None

    def test_on_again_tells_all_anew(self) -> None:
        desk = Desk()
        desk.hear(began("w"))
        desk.planner.switch("off")
        desk.hear()
        desk.planner.switch("on")
        plan = desk.hear()
        assert plan is not None
        assert set(plan.tables["w"] or ()) == {"tester"}

    def test_ends_go_out_in_every_mode(self) -> None:
        for mode in ("shadow", "off"):
            desk, other = Desk(mode), MadeUpEngine("other")
            desk.hear(began("w"))
            desk.cluster.hear(other.report(began("w")), desk.now)
            desk.cluster.hear(other.report(ended={"w": "final"}), desk.now)
            plan = desk.hear()
            assert plan is not None
            assert plan.ends == ["w"]
