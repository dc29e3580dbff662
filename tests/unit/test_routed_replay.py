"""Replays with several engines and a router, and with an engine that is lost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.benchmark.contestants import contestant
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Loss, Setup
from serving.benchmark.replay.switchboard import RouterError, rates_of, router_of
from serving.benchmark.workloads import Times, Workload, make_workload
from serving.cli import app
from serving.routing import router_names
from serving.sglang_plugin.integrity import check_integrity

FAST = Costs(
    name="fast",
    prefill_s=0.01,
    prefill_token_s=1e-4,
    prefill_pair_s=0.0,
    prefill_prefix_pair_s=0.0,
    decode_s=0.005,
    decode_call_s=0.0,
    decode_context_s=0.0,
    link_tokens_per_s=1e6,
    call_s=0.01,
    plan_s=0.0,
    source="made up",
)


def fleet(workflows: int = 12, **parameters: Any) -> Workload:
    return make_workload("fleet", 3, workflows=workflows, scale=0.1, teams=4, per_s=1.0, burst=0, **parameters)


def routed(router: str, workload: Workload, loss: Loss | None = None, engines: int = 3, policy: str = "lru") -> Replay:
    shape = EngineShape(4000, 0, 1000, 8, 4000)
    setup = Setup(workload, Times(), FAST, shape, engines, router=router, loss=loss)
    run = Replay(setup, contestant(policy))
    run.run()
    for engine in run._engines:
        assert not engine.busy
        check_integrity(engine.cache)
        assert not engine.cache.ledger.owners
    return run


@pytest.mark.parametrize("router", router_names())
class TestEveryRouter:
    def test_all_calls_are_made_and_no_engine_is_left_with_a_workflow(self, router: str) -> None:
        run = routed(router, fleet())
        assert len(run.calls) == sum(1 for _ in fleet().calls())
        assert not [call for call in run.calls if call.error]
        assert run._live == [0, 0, 0]

    @pytest.mark.parametrize("limit", ["1", "3", "miss-curve"])
    def test_with_limits_and_an_engine_that_is_lost_all_calls_are_made(self, router: str, limit: str) -> None:
        run = routed(router, fleet(), Loss(at_s=4.0, back_s=10.0), policy=f"lru@{limit}")
        assert len({(call.workflow, call.index) for call in run.calls if not call.error}) == sum(
            1 for _ in fleet().calls()
        )
        assert run._live == [0, 0, 0]
        assert run._door is not None
        assert [run._door.sample(place)["held"] for place in range(3)] == [0, 0, 0]

    def test_an_engine_that_is_lost_costs_time_and_no_call(self, router: str) -> None:
        lost = routed(router, fleet(), Loss(at_s=4.0, back_s=10.0))
        assert Counter((call.workflow, call.index) for call in lost.calls) == Counter(
            (workflow.id, index) for workflow, index, _ in fleet().calls()
        )
        assert not [call for call in lost.calls if call.error]
        assert {call.policy for call in lost.calls} == {f"lru, {router}"}

    def test_it_repeats_itself(self, router: str) -> None:
        assert routed(router, fleet(6)).calls == routed(router, fleet(6)).calls


def test_workflows_stay_where_they_are_under_version_two_and_not_under_chance() -> None:
    boards = {router: routed(router, fleet())._switchboard for router in ("workflow", "power-of-two")}
    assert all(board is not None for board in boards.values())
    assert boards["workflow"].reasons["sticky"] > 0.5 * boards["workflow"].reasons.total()  # type: ignore[union-attr]
    assert set(boards["power-of-two"].reasons) == {"random"}  # type: ignore[union-attr]


def test_one_engine_is_the_same_under_every_router() -> None:
    def figures(router: str) -> list[Any]:
        return [replace(call, policy="") for call in routed(router, fleet(6), engines=1).calls]

    first, *others = [figures(router) for router in router_names()]
    assert all(other == first for other in others)


def test_rates_are_those_of_the_calibration() -> None:
    rates = rates_of(FAST, fleet())
    assert rates.prefill_token_s == pytest.approx(1e-4)
    assert rates.host_token_s == pytest.approx(1e-6)


@pytest.mark.parametrize("said", ["round-robin", "workflow:margin_s", "workflow:margin_s=much", "session-hash:x=1"])
def test_what_is_no_router_is_a_clear_error(said: str) -> None:
    with pytest.raises(RouterError, match=r"router"):
        router_of(said, FAST, fleet(3))


class TestCommand:
    def run(self, *arguments: str) -> Any:
        fixed = (
            "replay",
            "--workload",
            "fleet",
            "-p",
            "workflows=4",
            "--scale",
            "0.05",
            "--policy",
            "lru",
            "--recorded",
        )
        return CliRunner().invoke(app, [*fixed, *arguments])

    def test_routers_side_by_side(self) -> None:
        run = self.run("--engines", "2", "--router", "workflow,session-hash", "--lose-engine", "3", "--json")
        assert run.exit_code == 0, run.output
        (point,) = json.loads(run.stdout)["points"]
        assert set(point["policies"]) == {"lru, workflow", "lru, session-hash"}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--router", "nobody"), "prefix-affinity"),
            (("--lose-engine", "3"), "--router"),
            (("--router", "workflow", "--lose-engine", "3"), "--engines"),
        ],
    )
    def test_bad_input_is_a_clear_error(self, arguments: tuple[str, ...], said: str) -> None:
        run = self.run(*arguments)
        assert run.exit_code == 2
        assert said in run.output
        assert "Traceback" not in run.output
