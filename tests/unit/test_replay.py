"""Replay in virtual time: the real cache under a modelled engine, with figures that can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.benchmark.contestants import contestant
from serving.benchmark.driver.points import points_of
from serving.benchmark.driver.suite import SuiteError, suite_of
from serving.benchmark.records import CallRecord, read_records
from serving.benchmark.replay.costs import CalibrationError, Costs, calibration_names, load_costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.replay.sweep_run import Sweep, run_sweep
from serving.benchmark.replay.validate import agreements, replay_suite
from serving.benchmark.workloads import Call, Lanes, Poisson, Segment, Workflow, Workload, make_workload
from serving.cli import app
from serving.sglang_plugin.integrity import check_integrity

COSTS = Costs(
    name="round",
    prefill_s=0.01,
    prefill_token_s=0.001,
    prefill_pair_s=0.0,
    prefill_prefix_pair_s=0.0,
    decode_s=0.02,
    decode_call_s=0.0,
    decode_context_s=0.0,
    link_tokens_per_s=1000.0,
    call_s=0.1,
    plan_s=0.0,
    source="made up",
)
LOOKAHEAD = ["lookahead-markov", "lookahead-noisy(0.2)", "lookahead-oracle+prefetch", "lookahead-oracle+aggressive"]
REUSE = ["reuse", "reuse-markov", "reuse-oracle+prefetch", "reuse-noisy(1)"]
POLICIES = ["lru", "lifecycle", "steps", "survival", "ttl", "cachescout", "belady", *LOOKAHEAD, *REUSE]


def workflow(name: str, *prompts: tuple[int, ...], output: int = 5, pause: float = 1.0) -> Workflow:
    """Calls whose prompts are segments of 100 tokens, by number."""
    calls = [
        Call(f"agent-{index % 2}", tuple(Segment(f"s{number}", 100) for number in prompt), output, pause)
        for index, prompt in enumerate(prompts)
    ]
    return Workflow(name, tuple(calls))


def setup(workload: Workload, device: int = 10_000, host: int = 0, lanes: int = 1, **shape: Any) -> Setup:
    sizes = {"chunk_tokens": 1000, "max_running": 8, "longest_call": 8000}
    return Setup(workload, Lanes(lanes), COSTS, EngineShape(device, host, **sizes | shape))


def replayed(its: Setup, policy: str = "lru") -> Replay:
    first = None
    if contestant(policy).clairvoyant:
        first = Replay(its, contestant("lru"))
        first.run()
    run = Replay(its, contestant(policy), first.sent if first else None)
    run.run()
    for engine in run._engines:
        assert not engine.busy
        check_integrity(engine.cache)
        assert engine.cache.full_protected_size() == 0
        assert len(engine._rows.free_slots) == engine._rows.size
    return run


class TestTime:
    def test_a_call_takes_what_its_steps_cost(self) -> None:
        (call,) = replayed(setup(Workload("one", (workflow("w", (1, 2)),)))).calls
        # Half of the call's own time, a prefill of 200 tokens; then four decode steps and the other half.
        assert call.first_token_s == pytest.approx(0.05 + 0.01 + 0.2 + 0.05)
        assert call.end_s == pytest.approx(0.05 + 0.01 + 0.2 + 4 * 0.02 + 0.05)
        assert (call.prompt_tokens, call.hit_device, call.hit_host) == (200, 0, 0)

    def test_a_prefix_that_is_there_is_not_computed(self) -> None:
        first, second = replayed(setup(Workload("two", (workflow("w", (1, 2), (1, 2, 3)),)))).calls
        assert second.sent_s == pytest.approx(first.end_s + 1.0)
        assert second.hit_device == 200
        assert second.first_token_s is not None
        assert second.first_token_s - second.sent_s == pytest.approx(0.05 + 0.01 + 0.1 + 0.05)

    def test_a_long_prompt_is_computed_in_chunks(self) -> None:
        (call,) = replayed(setup(Workload("long", (workflow("w", tuple(range(25))),)))).calls
        assert call.first_token_s == pytest.approx(0.05 + 3 * 0.01 + 2.5 + 0.05)

    def test_calls_at_once_share_their_steps(self) -> None:
        both = Workload("both", (workflow("a", (1,)), workflow("b", (2,))))
        calls = replayed(replace(setup(both, lanes=2), costs=replace(COSTS, call_s=0.0))).calls
        assert [call.first_token_s for call in calls] == [pytest.approx(0.01 + 0.2)] * 2
        assert [call.end_s for call in calls] == [pytest.approx(0.01 + 0.2 + 4 * 0.02)] * 2

    def test_calls_that_are_made_at_once_come_in_one_after_another(self) -> None:
        both = Workload("both", (workflow("a", (1,)), workflow("b", (1,))))
        first, second = replayed(setup(both, lanes=2)).calls
        assert (first.hit_device, second.hit_device) == (0, 99)  # the last token of a prompt is always computed

    def test_what_comes_back_from_the_host_takes_the_links_time(self) -> None:
        filler = [workflow(f"f{number}", (100 + 10 * number, *range(200, 206))) for number in range(3)]
        again = replace(workflow("again", (1, 2, 3, 4, 5)), id="again")
        workload = Workload("host", (workflow("w", (1, 2, 3, 4)), *filler, again))
        calls = replayed(setup(workload, device=1000, host=4000)).calls
        last = calls[-1]
        assert last.hit_host == 400
        assert last.first_token_s is not None
        assert last.first_token_s - last.sent_s == pytest.approx(0.05 + max(0.4, 0.01 + 0.1) + 0.05)


class TestPlans:
    """With each call of a workflow comes a plan, if the policy has forecasts."""

    def both(self, policy: str, plan_s: float, pause: float = 0.0) -> list[CallRecord]:
        """One workflow generates for long while the other makes three calls."""
        long = workflow("long", (1,), output=500)
        short = workflow("short", (2,), (2, 3), (2, 3, 4), output=1, pause=pause)
        costs = replace(COSTS, plan_s=plan_s)
        return replayed(replace(setup(Workload("plans", (long, short)), lanes=2), costs=costs), policy).calls

    def test_a_plan_takes_the_time_of_an_engine_that_works(self) -> None:
        (free,) = [call for call in self.both("lookahead-oracle", 0.0) if call.workflow == "long"]
        (dear,) = [call for call in self.both("lookahead-oracle", 0.01) if call.workflow == "long"]
        # The first two calls begin at once, and so does one plan about both, before the engine has any work.
        assert dear.end_s - free.end_s == pytest.approx(2 * 0.01)

    def test_an_idle_engine_loses_nothing_to_it(self) -> None:
        alone = setup(Workload("one", (workflow("w", (1,), (1, 2)),)))
        ends = [
            [call.end_s for call in replayed(replace(alone, costs=replace(COSTS, plan_s=plan_s)), "steps").calls]
            for plan_s in (0.0, 0.04)  # a plan is on its way from 0.005 s on, a call comes in after 0.05 s
        ]
        assert ends[0] == ends[1]

    def test_a_call_that_comes_in_while_a_plan_holds_up_the_engine_is_in_its_next_step(self) -> None:
        pair = Workload("pair", (workflow("a", (1,)), workflow("b", (2,))))
        its = replace(setup(pair, lanes=2), costs=replace(COSTS, plan_s=0.5))
        firsts = [call.first_token_s for call in replayed(its, "steps").calls]
        assert firsts == [pytest.approx(0.005 + 0.5 + 0.01 + 0.2 + 0.05)] * 2

    @pytest.mark.parametrize("policy", ["lru", "lifecycle", "reuse"])
    def test_who_sends_no_plans_pays_for_none(self, policy: str) -> None:
        assert self.both(policy, 1.0) == self.both(policy, 0.0)


class TestWorkloads:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_policy_answers_every_call_under_pressure(self, policy: str) -> None:
        workload = make_workload("hover", 1, workflows=8, scale=0.2)
        run = replayed(setup(workload, device=3000, host=3600, lanes=4, chunk_tokens=256), policy)
        assert len(run.calls) == workload.statistics().calls
        assert {call.error for call in run.calls} == {None}
        if not policy.endswith("+aggressive"):
            assert run.record.counters.get("active_evictions_by_prefetch", 0) == 0

    def test_it_repeats_itself(self) -> None:
        its = setup(make_workload("hover", 1, workflows=6, scale=0.2), device=3000, lanes=3)
        assert replayed(its, "lookahead-oracle").calls == replayed(its, "lookahead-oracle").calls

    def test_more_knowledge_hits_more(self) -> None:
        its = setup(make_workload("hover", 3, workflows=16, scale=0.3), device=11_000, host=13_000, lanes=8)
        hits = {
            policy: sum(call.hit_device + call.hit_host for call in replayed(its, policy).calls)
            for policy in ("lru", "lookahead-oracle", "belady")
        }
        assert hits["lru"] < hits["lookahead-oracle"] < hits["belady"]

    def test_belady_keeps_the_part_of_a_prompt_that_another_will_use(self) -> None:
        """Two calls a workflow with the same beginning and other ends; room for all beginnings, not for all ends."""
        prompts = [((number, 100 + number, 200 + number), (number, 300 + number)) for number in range(8)]
        workload = Workload("heads", tuple(workflow(f"w{number}", *pair) for number, pair in enumerate(prompts)))
        its = setup(workload, device=1600, lanes=8)
        hits = {policy: sum(call.hit_device for call in replayed(its, policy).calls) for policy in ("lru", "belady")}
        assert hits["lru"] < hits["belady"] == 8 * 100

    def test_what_is_used_again_is_learned_where_recency_and_forecasts_fail(self) -> None:
        """One agent, so that forecasts say nothing; every fifth call comes back to a prompt, the others never do."""
        calls = [(1, 2, 3) if index % 5 == 0 else (10 + index, 1000 + index, 2000 + index) for index in range(200)]
        names = [Workflow("w", tuple(replace(call, agent="agent") for call in workflow("w", *calls).calls))]
        its = setup(Workload("returns", tuple(names)), device=1200)
        hits = {
            policy: sum(call.hit_device for call in replayed(its, policy).calls)
            for policy in ("lru", "lookahead-oracle", "reuse", "reuse-noisy(1)")
        }
        assert hits["lru"] == hits["lookahead-oracle"] == 0
        assert min(hits["reuse"], hits["reuse-noisy(1)"]) > 0.8 * 39 * 300

    def test_several_engines_share_the_workflows(self) -> None:
        its = setup(make_workload("hover", 1, workflows=8, scale=0.2), lanes=8)
        run = replayed(replace(its, engines=2))
        assert sorted(run._live) == [0, 0]
        assert {run._homes[one.id] for one in its.workload.workflows} == {0, 1}

    def test_open_arrivals(self) -> None:
        its = replace(setup(make_workload("hover", 1, workflows=6, scale=0.2)), arrivals=Poisson(0.5, 1))
        starts = [call.sent_s for call in replayed(its).calls if call.index == 0]
        assert sorted(starts) == pytest.approx(list(Poisson(0.5, 1).start_times(its.workload)))

    def test_a_decode_without_room_sends_calls_back_and_loses_none(self) -> None:
        flood = Workload("flood", tuple(workflow(f"w{n}", (10 * n, 10 * n + 1), output=300) for n in range(4)))
        run = replayed(setup(flood, device=1200, lanes=4))
        assert run.record.counters["retractions"] > 0
        assert [call.output_tokens for call in run.calls] == [300] * 4

    def test_a_call_that_can_never_run_fails_with_its_workflow_and_the_others_go_on(self) -> None:
        mixed = Workload("mixed", (workflow("big", (1,), tuple(range(30)), (1,)), workflow("small", (1, 2))))
        calls = replayed(setup(mixed, device=1000)).calls
        failed = [call for call in calls if call.error]
        assert [(call.workflow, call.index) for call in failed] == [("big", 1)]
        assert "3005 tokens" in str(failed[0].error)
        assert [call.workflow for call in calls] == ["big", "big", "small"]


class TestCosts:
    def test_every_calibration_that_comes_along_can_be_read(self) -> None:
        assert {"qwen3-14b-a6000", "qwen3-14b-h100", "qwen3-32b-h100"} <= set(calibration_names())
        for name in calibration_names():
            costs = load_costs(name)
            assert costs.prefill([(1000, 0)]) < costs.prefill([(1000, 8000)])
            assert costs.source

    def test_what_attends_with_the_whole_prompt_pays_for_its_prefix(self) -> None:
        whole = replace(COSTS, prefill_pair_s=1e-6, prefill_prefix_pair_s=1e-6)
        pairs = (100 + 50) ** 2 / 2  # the same for any part of the prompt that is known
        assert whole.prefill([(50, 100)]) == pytest.approx(0.01 + 0.05 + 1e-6 * pairs)
        assert whole.prefill([(150, 0)]) == pytest.approx(0.01 + 0.15 + 1e-6 * pairs)

    @pytest.mark.parametrize("lacks", ["plan_s", "prefill_prefix_pair_s"])
    def test_one_of_before_says_what_it_lacks_and_how_to_get_it(self, lacks: str, tmp_path: Path) -> None:
        old = {key: value for key, value in asdict(COSTS).items() if key != lacks}
        (tmp_path / "old.json").write_text(json.dumps(old))
        with pytest.raises(CalibrationError, match=f"{lacks}.*forecache bench calibrate"):
            load_costs(str(tmp_path / "old.json"))

    def test_a_written_one_comes_back(self, tmp_path: Path) -> None:
        COSTS.write(tmp_path / "mine.json")
        assert load_costs(str(tmp_path / "mine.json")) == COSTS

    def test_what_is_none_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(CalibrationError, match="qwen3-14b-a6000"):
            load_costs("nowhere")
        (tmp_path / "bad.json").write_text('{"name": "x"}')
        with pytest.raises(CalibrationError, match="prefill_s"):
            load_costs(str(tmp_path / "bad.json"))


class TestSweep:
    def test_every_policy_of_every_point_is_written_down(self, tmp_path: Path) -> None:
        sweep = Sweep(
            workload=lambda seed: make_workload("hover", seed, workflows=3, scale=0.1),
            policies=[contestant("lru"), contestant("belady"), contestant("unlimited")],
            costs=COSTS,
            arrivals=[Lanes(1), Lanes(2)],
            device_tokens=[1500, 2500],
            host_ratios=[0.0, 1.0],
            rounds=2,
        )
        run_sweep(sweep, tmp_path / "records.jsonl", lambda name, calls, of: None)
        records = read_records(tmp_path / "records.jsonl")
        assert len(records.points) == 8
        assert {spec.values["host_tokens"] for spec in records.points.values()} == {0, 1500, 2500}
        assert len(records.rounds) == 8 * 2 * 3


SUITE = {
    "name": "tiny",
    "app": {"model": {"source": "random-qwen3"}, "engine": {"chunked_prefill_size": 512, "context_length": 4096}},
    "workload": {"name": "hover", "workflows": 6, "scale": 0.1},
    "arrivals": {"lanes": 3},
    "rounds": 2,
    "policies": ["lru", "lifecycle"],
    "sweep": {"device_tokens": [1500]},
}


class TestValidation:
    def results(self) -> Any:
        suite = suite_of(SUITE, "test")
        wanted = {"points": [{"key": points_of(suite)[0].spec.key, "policies": {"lru": None, "lifecycle": None}}]}
        return suite, replay_suite(suite, wanted, COSTS, lambda what: None)

    def test_a_replay_agrees_with_itself_and_not_with_slower_costs(self) -> None:
        suite, results = self.results()
        same = agreements(suite, results, COSTS, lambda what: None)
        assert {one.policy for one in same} == {"lru", "lifecycle"}
        assert all(one.agrees and one.hit_difference == 0 and one.latency_ratio == 1 for one in same)
        slow = replace(COSTS, prefill_token_s=0.1, decode_s=1.0)
        assert not any(one.agrees for one in agreements(suite, results, slow, lambda what: None))

    @pytest.mark.parametrize(
        ("change", "said"),
        [({"sweep": {}}, "device pool"), ({"arrivals": {"times": True, "time_scale": 2.0}}, "time_scale")],
    )
    def test_a_suite_that_cannot_be_replayed_says_why(self, change: dict[str, Any], said: str) -> None:
        suite = suite_of(SUITE | change, "test")
        wanted = {"points": [{"key": points_of(suite)[0].spec.key, "policies": {"lru": None}}]}
        with pytest.raises(SuiteError, match=said):
            replay_suite(suite, wanted, COSTS, lambda what: None)


class TestCommand:
    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(app, ["replay", *arguments])

    def test_a_workload_as_json_and_as_a_report(self, tmp_path: Path) -> None:
        run = self.run(
            *("--workload", "hover", "-p", "workflows=4", "--scale", "0.1", "--lanes", "2", "--policy", "lru,belady"),
            *("--capacity", "0.6", "--out", str(tmp_path), "--json"),
        )
        assert run.exit_code == 0, run.output
        (point,) = json.loads(run.stdout)["points"]
        assert set(point["policies"]) == {"lru", "belady"}
        assert (tmp_path / "index.html").exists()

    def test_records_that_are_there_are_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "records.jsonl").write_text("precious")
        run = self.run("--workload", "hover", "-p", "workflows=2", "--out", str(tmp_path))
        assert run.exit_code == 2
        assert "another folder" in run.output
        assert (tmp_path / "records.jsonl").read_text() == "precious"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "--trace FILE or --workload NAME"),
            (("--workload", "hoover"), "hover"),
            (("--workload", "hover", "--policy", "lfu"), "lookahead-oracle"),
            (("--workload", "hover", "--calibration", "tpu"), "qwen3-14b-a6000"),
            (("--workload", "hover", "--lanes", "none"), "--lanes"),
            (("--workload", "hover", "-p", "workflows"), "key=value"),
            (("--workload", "hover", "--host-ratio", "-1"), "--host-ratio"),
            (("--workload", "hover", "--policy", "reuse:guards=false"), "guards"),
            (("--trace", "nowhere.jsonl"), "nowhere.jsonl"),
            (("--workload", "hover", "--rate", "1", "--recorded"), "not both"),
        ],
    )
    def test_bad_input_is_a_clear_error(self, arguments: tuple[str, ...], said: str) -> None:
        run = self.run(*arguments)
        assert run.exit_code == 2
        assert said in run.output
        assert "Traceback" not in run.output
