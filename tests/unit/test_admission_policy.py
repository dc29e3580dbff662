"""The runtime policy `admission`: what its controllers are told, what becomes of their limits, and in which mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from coordinator_reports import MadeUpEngine, began, certain, over
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission import LimitController, Signals
from cache_actor.admission.base import _CONTROLLERS, register
from cache_actor.admission_messages import AdmissionReport
from cache_actor.cluster import Cluster
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.forecast import compiled
from cache_actor.messages import EnginePlan, SyncReport, Work
from cache_actor.planner import Planner, PlannerConfig
from cache_actor.runtime import Runtime
from cache_actor.runtime_policies import make_runtime_policies
from cache_actor.runtime_policies.admission import PERIOD_S, Admission
from cache_actor.runtime_policies.kv_reuse import LATE
from cache_actor.state import EngineState

WORK = Work(0.0, 1.5, 2.5, 700, 80, 30, 50, 4000, 9000)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["call", "end", "restart", "pause", "silent"]),
        st.sampled_from(["e1", "e2"]),
        st.sampled_from([f"w{number}" for number in range(5)]),
        st.integers(1, 900),
    ),
    max_size=60,
)


class Listener(LimitController):
    """Its limit is how often it was told something."""

    name: ClassVar[str] = "listener"
    made: ClassVar[list[Listener]] = []

    def __init__(self) -> None:
        self.heard: list[Signals] = []
        Listener.made.append(self)

    def observe(self, signals: Signals) -> int | None:
        self.heard.append(signals)
        return len(self.heard)

    def explain(self) -> dict[str, float]:
        return {"heard": float(len(self.heard))}


@pytest.fixture(autouse=True)
def _listener() -> Iterator[None]:
    register(Listener)
    Listener.made.clear()
    yield
    del _CONTROLLERS["listener"]


class Desk:
    """Engines, an ingress, and the coordinator's planner with this policy."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        policies = make_runtime_policies(["kv-reuse", "admission"], {"admission": {"controller": "listener"}})
        (self.policy,) = [one for one in policies if isinstance(one, Admission)]
        self.runtime = Runtime(policies)
        self.planner = Planner(self.cluster, self.runtime, PlannerConfig())
        self.engine = MadeUpEngine(work=WORK)
        self.now = 100.0
        self.numbers = iter(range(1, 10_000))

    @property
    def state(self) -> EngineState:
        return self.cluster.engines["e"]

    @property
    def latest(self) -> Signals:
        return Listener.made[-1].heard[-1]

    def hear(self, *events: object, forecast: bool = False, **fields: object) -> EnginePlan | None:
        """The plan after a report of the engine, a period after the one before."""
        self.now += PERIOD_S
        engine = self.cluster.hear(at(self.now, self.engine.report(*events, **fields)), self.now)  # type: ignore[arg-type]
        self.runtime.observe([], self.cluster.take_gone(), engine)
        if forecast:
            begun = self.cluster.take(1000)[0]
            made = compiled(certain(begun, ["coder", "tester"], "tester"), [one.length for one in begun], 0.5, self.now)
            for prefix, one in zip(begun, made, strict=True):
                self.cluster.expect(prefix.workflow, one, self.now)
        return self.planner.plan(self.state, self.now)

    def gate(self, **fields: object) -> None:
        """A report of the ingress."""
        whole = {"admitted": {}, "held": {}, "paused": [], "events": []} | fields
        self.cluster.hear_ingress(AdmissionReport("i", 1, next(self.numbers), **whole), self.now)  # type: ignore[arg-type]


def at(now: float, report: SyncReport) -> SyncReport:
    """The report, with what the engine had done by then."""
    return replace(report, work=replace(report.work, at=now))


def calls(workflow: str, *tokens: int) -> list[object]:
    return [one for size in tokens for one in (began(workflow, tokens=size), over(workflow, tokens=size))]


class TestSignals:
    def test_they_are_what_engine_workflows_and_ingresses_show(self) -> None:
        desk = Desk()
        desk.hear()
        desk.gate(admitted={"e": 2, "other": 7}, held={"e": 1, "other": 3, "": 4})
        desk.hear(*calls("w", 100, 300), *calls("v", 500))
        assert desk.latest == Signals(
            at=desk.now,
            admitted=2,
            held=5,
            running_calls=0,
            waiting_calls=0,
            prefill_s=1.5,
            busy_s=2.5,
            computed=700,
            regret=30,
            reused=50,
            output=80,
            working_set=310 + 510,
            growth=200,
            device_tokens=4000,
            host_tokens=9000,
        )

    def test_without_an_ingress_all_that_lives_there_is_in(self) -> None:
        desk = Desk()
        desk.hear(*calls("w", 100), *calls("v", 500))
        assert (desk.latest.admitted, desk.latest.held) == (2, 0)

    def test_growth_is_weighed_with_the_chance_of_another_call(self) -> None:
        desk = Desk()
        desk.hear(*calls("w", 100, 300), forecast=True)
        whole = desk.latest.growth
        state = desk.cluster.workflows["w"]
        assert state.forecast is not None
        assert whole == round(200 * state.forecast.survival[0])

    def test_paused_and_ended_workflows_are_no_part_of_the_working_set(self) -> None:
        desk = Desk()
        desk.hear(*calls("w", 100), *calls("v", 500))
        desk.gate(paused=["v"])
        desk.hear()
        assert desk.latest.working_set == 110
        desk.gate()
        desk.hear()
        assert desk.latest.working_set == 110 + 510
        desk.hear(ended={"v": "final"})
        assert desk.latest.working_set == 110

    @given(ACTIONS)
    def test_the_working_set_is_the_sum_over_whoever_is_in(self, actions: list[tuple[str, str, str, int]]) -> None:
        desk = Desk()
        engines = {name: MadeUpEngine(name, work=WORK) for name in ("e1", "e2")}
        paused: set[str] = set()
        for action, name, workflow, tokens in actions:
            desk.now += PERIOD_S
            events: list[object] = []
            ended = {}
            match action:
                case "call":
                    events = calls(workflow, tokens)
                case "end":
                    ended = {workflow: "final"}
                case "restart":
                    engines[name] = MadeUpEngine(name, engines[name].epoch + 1, work=WORK)
                case "pause":
                    paused ^= {workflow}
                    desk.gate(paused=sorted(paused))
                case _:
                    desk.now += 20
                    desk.cluster.expire(desk.now, 900.0)
            for one, engine in engines.items():
                mine = events if one == name else []
                told = engine.report(*mine, ended=ended if one == name else {})  # type: ignore[arg-type]
                state = desk.cluster.hear(at(desk.now, told), desk.now)
                desk.runtime.observe([], desk.cluster.take_gone(), state)
                desk.planner.plan(state, desk.now)
        for one in engines:
            state = desk.cluster.engines.get(one)
            if state is not None:
                living = [desk.cluster.workflows[workflow] for workflow in state.workflows]
                expected = sum(each.path.context for each in living if not each.paused)
                assert desk.policy._watches[one].tokens == expected
        assert set(desk.policy._contexts) <= set(desk.cluster.workflows)


class TestLimits:
    def test_they_are_found_no_oftener_than_once_a_period(self) -> None:
        desk = Desk()
        desk.hear()
        for _ in range(5):
            desk.now -= 0.9 * PERIOD_S
            desk.hear()
        assert len(Listener.made[-1].heard) == 1
        assert desk.state.limit == 1
        desk.hear()
        assert desk.state.limit == 2
        assert desk.state.figures == {"heard": 2.0}

    def test_an_engine_that_has_said_nothing_since_is_not_judged_again(self) -> None:
        desk = Desk()
        desk.hear()
        stuck = desk.cluster.engines["e"].work
        for _ in range(5):
            desk.now += PERIOD_S
            told = replace(desk.engine.report(), work=stuck)
            desk.planner.plan(desk.cluster.hear(told, desk.now), desk.now)
        assert len(Listener.made[-1].heard) == 1
        assert desk.state.limit == 1

    def test_an_engine_that_cannot_tell_what_it_computes_again_has_none(self) -> None:
        desk = Desk()
        desk.engine.work = replace(WORK, regret=None)
        desk.hear()
        assert Listener.made[-1].heard == []
        assert desk.state.limit is None

    def test_one_that_has_started_again_begins_anew(self) -> None:
        desk = Desk()
        desk.hear(*calls("w", 100))
        desk.hear()
        desk.engine = MadeUpEngine(epoch=2, work=WORK)
        desk.hear()
        assert len(Listener.made) == 2 + 1  # one was made to see whether it can be
        assert desk.state.limit == 1
        assert desk.latest.working_set == 0

    def test_each_engine_has_its_own(self) -> None:
        desk = Desk()
        desk.hear()
        desk.hear()
        other = desk.cluster.hear(at(desk.now, MadeUpEngine("other", work=WORK).report()), desk.now)
        desk.planner.plan(other, desk.now)
        assert (desk.state.limit, other.limit) == (2, 1)

    def test_those_of_engines_that_are_gone_are_forgotten(self) -> None:
        desk = Desk()
        for number in range(5):
            engine = desk.cluster.hear(at(desk.now, MadeUpEngine(f"e{number}", work=WORK).report()), desk.now)
            desk.planner.plan(engine, desk.now)
            desk.now += 100
            desk.cluster.expire(desk.now, 900.0)
        assert len(desk.policy._watches) == 1


class TestModes:
    def test_shadow_finds_and_counts_them_and_tells_nobody(self) -> None:
        desk = Desk()
        desk.planner.switch("shadow")
        desk.hear()
        assert (desk.state.limit, desk.state.found) == (None, 1)
        assert desk.planner.counts["shadow_limits"] == 1

    def test_off_takes_them_back_at_once_and_on_again_begins_anew(self) -> None:
        desk = Desk()
        desk.hear(*calls("w", 100))
        desk.hear()
        desk.planner.switch("off")
        assert desk.state.limit is None
        desk.hear()
        assert (desk.state.limit, desk.state.found) == (None, None)
        desk.planner.switch("on")
        desk.hear()
        assert desk.state.limit == 1
        assert desk.latest.working_set == 110


class TestPaused:
    def test_what_a_paused_workflow_will_use_it_uses_late_until_it_goes_on(self) -> None:
        desk = Desk()
        plan = desk.hear(*calls("w", 100), forecast=True)
        assert plan is not None
        table = plan.tables["w"]
        assert table is not None
        desk.gate(paused=["w"])
        paused = desk.hear()
        assert paused is not None
        assert paused.tables == {"w": {agent: value // LATE for agent, value in table.items()}}
        desk.gate()
        again = desk.hear()
        assert again is not None
        assert again.tables == {"w": table}

    def test_without_a_forecast_a_paused_workflow_is_expected_to_use_nothing(self) -> None:
        desk = Desk()
        plan = desk.hear(*calls("w", 100))
        assert plan is None or not plan.tables
        desk.gate(paused=["w"])
        paused = desk.hear()
        assert paused is not None
        assert paused.tables == {"w": {}}
        again = desk.hear()
        assert again is None or not again.tables
        desk.gate()
        restored = desk.hear()
        assert restored is not None
        assert restored.tables == {"w": None}


class TestConfig:
    def test_the_controller_is_made_as_configured(self) -> None:
        config = CoordinatorConfig(
            runtime_policies=("admission",), admission="fixed", admission_parameters={"workflows": 3}
        )
        (policy,) = config.make_policies()
        assert isinstance(policy, Admission)

    @pytest.mark.parametrize(
        ("admission", "parameters", "reason"),
        [("bouncer", {}, "unknown admission 'bouncer'"), ("fixed", {"lanes": 3}, "no parameter 'lanes'")],
    )
    def test_what_cannot_be_is_refused(self, admission: str, parameters: dict[str, int], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            CoordinatorConfig(admission=admission, admission_parameters=parameters)
