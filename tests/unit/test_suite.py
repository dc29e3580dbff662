"""The pure parts of `forecache bench run`: suite files, points and turns, plans gathered, events of a stream."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from cache_actor.admission.base import DEFAULT_CONTROLLER
from serving.benchmark.contestants import contestant
from serving.benchmark.driver.call import Answer, take
from serving.benchmark.driver.plan_desk import ORDER_LIFE_S, TABLE_LIFE_S, PlanDesk
from serving.benchmark.driver.points import check_fit, in_turn, points_of, turns_of, unlimited_tokens, variant_of
from serving.benchmark.driver.run import RECORDS, Run
from serving.benchmark.driver.suite import Suite, SuiteError, load_suite, suite_of
from serving.benchmark.driver.telemetry import complete, counts_nothing, difference, gate_sample_of, sample_of
from serving.benchmark.forecasts import Word
from serving.benchmark.records import RecordWriter, RoundRecord
from serving.benchmark.workloads import WorkloadError, make_workload

CONFIGS = Path(__file__).parents[2] / "configs" / "bench"
GIVEN: dict[str, Any] = {
    "name": "small",
    "app": {"model": {"source": "random-qwen3"}, "engine": {"max_total_tokens": 20_000, "hicache_ratio": 2.0}},
    "workload": {"name": "hover", "workflows": 3, "scale": 0.2},
    "arrivals": {"lanes": 2},
    "rounds": 2,
    "policies": ["lru", "stock", "lookahead-oracle+prefetch"],
}


def suite(**changes: Any) -> Suite:
    return suite_of(GIVEN | changes, "suite.yaml")


class TestSuiteFile:
    @pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
    def test_those_of_the_repository_can_be_run(self, file: Path, tmp_path: Path) -> None:
        if "applications" in yaml.safe_load(file.read_text()):
            pytest.skip("an application, which suites name")
        Run(load_suite(file), tmp_path / "out")

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"polices": ["lru"]}, "there is no key 'polices'"),
            ({"policies": ["lru", "lrru"]}, "unknown policy 'lrru'; choose from"),
            ({"policies": ["belady"]}, "only `forecache replay` can"),
            ({"policies": []}, "policies"),
            ({"baseline": "ttl"}, "'ttl' is not among the policies; choose one of lru, stock"),
            ({"workload": {"name": "hovver"}}, "unknown workload 'hovver'; choose from"),
            ({"workload": {"workflows": 3}}, "the key 'workload.name' is missing"),
            ({"arrivals": {}}, "give exactly one of lanes, poisson_per_s and times"),
            ({"arrivals": {"lanes": 2, "times": True}}, "give exactly one of"),
            ({"arrivals": {"lanes": 0}}, "arrivals.lanes cannot be 0"),
            ({"rounds": 0}, "rounds cannot be 0"),
            ({"sweep": {"noise": [1.5]}}, "sweep.noise.0 cannot be 1.5"),
            ({"sweep": {"workload": {"hops": [1]}}}, "'hops' of 'hover' cannot be swept; choose from workflows"),
            ({"sweep": {"workload": {"questions": ["a.json"]}}}, "'questions' of 'hover' cannot be swept"),
            ({"sweep": {"workload": {"scale": []}}}, "sweep.workload.scale"),
            ({"arrivals": {"poisson_per_s": 1.0}, "sweep": {"concurrency": [2]}}, "sweep.concurrency varies the lanes"),
            ({"sweep": {"workflows_per_s": [2.0]}}, "sweep.workflows_per_s varies the starts"),
            ({"policies": ["stock@4"]}, "'stock@4' has SGLang's own cache"),
            ({"policies": ["lookahead-oracle@4"]}, "'lookahead-oracle@4' is told forecasts by the benchmark"),
            ({"routers": ["fastest"], "policies": ["lru"]}, "unknown router 'fastest'; choose from"),
            ({"routers": ["workflow:margin_s=x"], "policies": ["lru"]}, "'lru, workflow:margin_s=x'"),
            ({"routers": ["workflow"], "policies": ["stock"]}, "'stock, workflow' has SGLang's own cache"),
            ({"routers": ["workflow"], "policies": ["lookahead-oracle"]}, "is told forecasts by the benchmark"),
            ({"app": {"engine": {}, "modell": {}}}, "there is no key 'app.modell'"),
        ],
    )
    def test_an_error_names_the_key_and_what_would_do(self, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(SuiteError, match=r"^suite\.yaml: ") as error:
            suite(**changes)
        assert said in str(error.value)

    def test_a_file_is_read_with_its_app_beside_it_and_options_win(self, tmp_path: Path) -> None:
        (tmp_path / "app.yaml").write_text(yaml.safe_dump({"applications": [{"name": "x", "args": GIVEN["app"]}]}))
        path = tmp_path / "suite.yaml"
        path.write_text(yaml.safe_dump(GIVEN | {"app": "app.yaml", "baseline": "lru", "sweep": {"noise": [0.5]}}))
        read = load_suite(path, policies=["lifecycle"], rounds=7)
        assert (read.app.model.source, read.contestants(), read.rounds, read.baseline) == (
            "random-qwen3",
            ["lifecycle"],
            7,
            None,
        )

    @pytest.mark.parametrize("text", ["a: [", "- a", ""])
    def test_what_is_no_suite_is_an_error(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "suite.yaml"
        path.write_text(text)
        with pytest.raises(SuiteError):
            load_suite(path)
        with pytest.raises(SuiteError, match="cannot be read"):
            load_suite(tmp_path / "absent.yaml")

    def test_a_broken_trace_line_is_an_error_with_its_number(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl"
        trace.write_text("no JSON\n")
        with pytest.raises(ValueError, match=r"trace\.jsonl, line 1"):
            Run(suite(workload={"name": "trace", "path": str(trace)}), tmp_path / "out")

    def test_a_prompt_longer_than_the_smallest_pool_is_an_error_before_anything_starts(self) -> None:
        small = suite(sweep={"device_tokens": [20_000, 150]})
        with pytest.raises(SuiteError, match=r"150 are allowed; scale the workload by .*device_tokens"):
            check_fit(small, points_of(small), [small.workload.make(0)])

    def test_each_policy_is_played_under_each_router(self, tmp_path: Path) -> None:
        routed = {"policies": ["lru", "forecache"], "routers": ["session-hash", "power-of-two"]}
        names = ["lru, session-hash", "lru, power-of-two", "forecache, session-hash", "forecache, power-of-two"]
        assert suite(**routed, baseline="lru, power-of-two").contestants() == names
        path = tmp_path / "suite.yaml"
        path.write_text(yaml.safe_dump(GIVEN | routed | {"baseline": "lru, power-of-two"}))
        assert load_suite(path, routers=["power-of-two"]).baseline == "lru, power-of-two"
        read = load_suite(path, policies=["lru"], routers=["workflow:margin_s=3"])
        assert (read.contestants(), read.baseline) == (["lru, workflow:margin_s=3"], None)
        who = contestant(read.contestants()[0])
        assert (who.policy, who.router, who.router_parameters) == ("lru", "workflow", {"margin_s": 3})

    def test_routers_share_an_application_that_can_be_switched_to_each(self) -> None:
        routed = suite(policies=["lru", "reuse"], routers=["session-hash", "prefix-affinity"])
        (point,) = points_of(routed)
        variants = [variant_of(contestant(name), point, routed, 0) for name in routed.contestants()]
        assert all(variant == variants[0] for variant in variants)
        config = variants[0].config
        assert config.coordinator.enabled
        assert not config.predictor.enabled
        assert {contestant(name).router for name in routed.contestants()} <= set(config.router.choices())

    def test_no_round_plays_what_forecasts_are_taught_with(self) -> None:
        seeds = [suite(seed=seed).round_seed(number) for seed in range(5) for number in range(20)]
        assert not {suite(seed=seed).teaching_seed() for seed in range(5)} & set(seeds)


class TestSweep:
    def test_points_are_all_combinations_and_set_the_engine(self) -> None:
        points = points_of(suite(sweep={"concurrency": [2, 4], "device_tokens": [10_000, 30_000]}))
        assert [point.spec.values for point in points] == [
            {"workload": "hover", "concurrency": lanes, "device_tokens": tokens, "host_ratio": 2.0}
            for lanes in (2, 4)
            for tokens in (10_000, 30_000)
        ]
        assert [point.arrivals.lanes for point in points] == [2, 2, 4, 4]
        assert points[1].engine == {"max_total_tokens": 30_000, "hicache_ratio": 2.0}

    def test_the_rate_of_arrivals_is_an_axis(self) -> None:
        points = points_of(suite(arrivals={"poisson_per_s": 1.0}, sweep={"workflows_per_s": [0.5, 4.0]}))
        assert [point.spec.values["workflows_per_s"] for point in points] == [0.5, 4.0]
        assert [point.arrivals.poisson_per_s for point in points] == [0.5, 4.0]

    def test_a_parameter_of_the_workload_is_an_axis(self, tmp_path: Path) -> None:
        selector = {"name": "selector", "workflows": 3, "scale": 0.1, "predictability": 0.5}
        swept = suite(workload=selector, sweep={"workload": {"predictability": [1, 0.12]}, "concurrency": [1, 2]})
        points = points_of(swept)
        assert [(point.spec.values["predictability"], point.arrivals.lanes) for point in points] == [
            (1, 1),
            (1, 2),
            (0.12, 1),
            (0.12, 2),
        ]
        made = [point.workload.make(5) for point in points]
        assert made[0] == made[1] != made[2]
        assert made[2] == make_workload("selector", 5, workflows=3, scale=0.1, predictability=0.12)
        played = [point.workload.make(swept.round_seed(number)) for point in points for number in range(swept.rounds)]
        calls = sum(len(list(one.calls())) for one in played)
        assert Run(swept, tmp_path).progress.all_calls == calls * len(swept.policies)

    def test_a_value_that_the_workload_does_not_take_is_an_error_before_anything_starts(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="predictability is 2"):
            Run(suite(workload={"name": "selector"}, sweep={"workload": {"predictability": [2]}}), tmp_path)

    def test_noise_adds_policies(self) -> None:
        noisy = suite(policies=["lru", "lookahead-noisy(0.2)"], sweep={"noise": [0.2, 0.5]})
        assert noisy.contestants() == ["lru", "lookahead-noisy(0.2)", "lookahead-noisy(0.5)"]
        assert len(points_of(noisy)) == 1

    def test_policies_of_our_cache_share_one_application(self) -> None:
        small = suite()
        (point,) = points_of(small)

        def variant(name: str) -> Any:
            return variant_of(contestant(name), point, small, 77_000)

        assert variant("lru") == variant("lookahead-oracle+prefetch")
        assert variant("lru").config.cache.prefetch == "off"
        assert variant("stock").config.cache.backend == "sglang"
        assert variant("session-refs").config.engine["enable_session_radix_cache"]
        assert variant("unlimited").config.engine["max_total_tokens"] == 77_000
        assert not variant("unlimited").config.engine["enable_hierarchical_cache"]
        assert len({variant(name).name for name in ("lru", "stock", "session-refs", "unlimited")}) == 4

    def test_each_admission_has_an_application_of_its_own(self) -> None:
        small = suite()
        (point,) = points_of(small)

        def variant(name: str) -> Any:
            return variant_of(contestant(name), point, small, 77_000)

        limited = variant("reuse@4").config.coordinator
        assert (limited.enabled, limited.runtime_policies) == (True, ("kv-reuse", "admission"))
        assert (limited.admission, limited.admission_parameters) == ("fixed", {"workflows": 4})
        assert not variant("reuse@4").config.predictor.enabled
        assert variant("lru@4") == variant("reuse@4") != variant("reuse@5")
        assert not variant("lru").config.coordinator.enabled
        assert variant("lru@off") == variant("lru")
        whole = variant("forecache@4").config.coordinator
        assert (whole.admission, "kv-reuse" in whole.runtime_policies) == ("fixed", True)
        assert variant("forecache").config.coordinator.admission == DEFAULT_CONTROLLER
        assert variant("forecache@4").name == variant("forecache").name

    def test_the_unlimited_pool_holds_a_whole_round(self) -> None:
        workload = suite().workload.make(1)
        statistics = workload.statistics()
        assert unlimited_tokens([workload]) > statistics.distinct_tokens + statistics.output_tokens


class TestOrder:
    def test_every_round_has_every_policy_and_begins_with_another(self) -> None:
        small = suite(policies=["stock", "lru", "lifecycle", "ttl"], rounds=3)
        turns = list(turns_of(small, points_of(small)))
        rounds = [[turn.contestant.name for turn in turns if turn.round == number] for number in range(3)]
        assert all(sorted(names) == sorted(small.policies) for names in rounds)
        assert [turn.round for turn in turns] == sorted(turn.round for turn in turns)
        assert rounds[0] == ["stock", "lru", "lifecycle", "ttl"]
        assert rounds[1] == ["lifecycle", "ttl", "lru", "stock"]

    def test_policies_with_the_same_admission_follow_one_another(self) -> None:
        names = ["lru", "lru@4", "reuse", "reuse@4", "lru@5"]
        for number in range(4):
            order = [who.admission + str(who.admission_parameters) for who in in_turn(contestants(names), number)]
            assert len(list(itertools.groupby(order))) == 3

    def test_policies_of_one_application_follow_one_another(self) -> None:
        names = ["lru", "stock", "lifecycle", "unlimited", "ttl", "session-refs"]
        for number in range(8):
            order = [
                who.backend + str(who.unlimited) + str(who.session_refs) for who in in_turn(contestants(names), number)
            ]
            assert len(list(itertools.groupby(order))) == 4


def contestants(names: list[str]) -> list[Any]:
    return [contestant(name) for name in names]


class TestPlanDesk:
    def test_many_words_become_one_plan_with_the_newest_of_each_workflow(self) -> None:
        desk = PlanDesk(itertools.count(5), prefetch=False)
        desk.say("e", "w", Word({"a": 1}, {"a": 9}))
        desk.say("e", "v", Word({"b": 2}))
        desk.say("e", "w", Word({"a": 3}, {"a": 9}))
        (plan,) = desk.take("e")
        assert (plan.plan, plan.time_to_live_s) == (5, TABLE_LIFE_S)
        assert plan.tables == {"w": {"a": 3}, "v": {"b": 2}}
        assert plan.prefetches == []
        assert desk.take("e") == []

    def test_orders_go_in_a_plan_of_their_own_that_lives_shorter(self) -> None:
        desk = PlanDesk(itertools.count(1), prefetch=True)
        desk.say("e", "w", Word({"a": 1}, {"a": 9, "b": 0}))
        desk.say("e", "w", Word({"a": 1}, {"c": 8}))
        tables, orders = desk.take("e")
        assert tables.prefetches == []
        assert (orders.plan, orders.time_to_live_s, orders.tables) == (2, ORDER_LIFE_S, {})
        assert [(order.workflow, order.agent, order.value) for order in orders.prefetches] == [("w", "c", 8)]
        desk.order("e", "w", Word({}, {"c": 8}))
        (again,) = desk.take("e")
        assert again.prefetches[0].order > orders.prefetches[0].order

    def test_engines_are_told_apart_and_what_is_over_is_not_sent(self) -> None:
        desk = PlanDesk(itertools.count(1), prefetch=True)
        desk.say("e", "w", Word({"a": 1}, {"a": 1}))
        desk.say("f", "v", Word({"a": 2}, {"a": 1}))
        desk.forget("w")
        assert desk.take("e") == []
        assert desk.take("f")[0].tables == {"v": {"a": 2}}


class TestStream:
    def test_the_first_token_is_the_first_chunk_with_an_id_though_it_has_no_text(self) -> None:
        answer = Answer(1.0)
        assert not take(answer, '{"choices": [{"text": "", "token_ids": []}]}', 2.0)
        assert not take(answer, '{"choices": [{"text": "", "token_ids": [7]}]}', 3.0)
        assert not take(answer, '{"choices": [{"text": "xy", "token_ids": [8, 9]}]}', 4.0)
        assert (answer.first_token_s, answer.output) == (3.0, [7, 8, 9])

    def test_usage_splits_hits_by_tier(self) -> None:
        answer = Answer(1.0)
        usage = '{"prompt_tokens": 50, "completion_tokens": 3, "prompt_tokens_details": {"device": 20, "host": 5}}'
        assert not take(answer, '{"choices": [], "usage": ' + usage + "}", 2.0)
        assert (answer.prompt_tokens, answer.output_tokens, answer.hit_device, answer.hit_host) == (50, 3, 20, 5)

    def test_an_error_ends_it(self) -> None:
        answer = Answer(1.0)
        assert take(answer, '{"error": {"message": "the engine is gone"}}', 2.0)
        assert answer.error == "the engine is gone"
        assert take(Answer(1.0), "[DONE]", 2.0)


def engine(**pools: int) -> dict[str, Any]:
    return {"id": "e", "cache": {"counters": {"prompt": pools.pop("prompt", 0)}, "pools": pools}}


class TestTelemetry:
    def test_counters_are_differences_summed_over_engines(self) -> None:
        grown = difference([engine(prompt=5), engine(prompt=1)], [engine(prompt=9), engine(prompt=2)])
        assert {name: count for name, count in grown.items() if count} == {"prompt": 5}

    def test_what_an_engine_counts_is_0_until_there_is_some(self) -> None:
        assert difference([engine(prompt=0)], [engine(prompt=1)])["evicted_device_retired"] == 0

    def test_sglangs_own_cache_counts_nothing_and_a_busy_one_says_nothing(self) -> None:
        stock, busy = {"cache": {"error": "its own cache"}}, {"cache": None}
        assert difference([stock], [stock]) == {}
        assert counts_nothing([stock])
        assert not counts_nothing([busy])
        assert complete([stock])
        assert not complete([busy])
        assert sample_of(stock, 100, 1.0) is None

    def test_a_samples_parts_add_up_to_the_pool(self) -> None:
        told = engine(free=10, evictable=50, locked=20, device_retired=15, prefetched_unused=5, host_active=8)
        sample = sample_of(told, 100, 2.5)
        assert sample is not None
        assert sum(sample[part] for part in ("active", "retired", "prefetched", "free")) == 100
        assert (sample["at_s"], sample["retired"], sample["running"], sample["host_active"]) == (2.5, 15, 40, 8)


class TestContinued:
    def test_finished_rounds_are_not_played_again_and_another_suite_is_refused(self, tmp_path: Path) -> None:
        small = suite(policies=["lru"])
        run = Run(small, tmp_path)
        assert run.progress.all_rounds == 2
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(small.model_dump(mode="json"), sort_keys=False))
        with RecordWriter(tmp_path / RECORDS) as writer:
            (point,) = points_of(small)
            writer.point(point.spec)
            writer.end_round(RoundRecord(point.spec.key, "lru", 0, 1.0))
        assert Run(small, tmp_path).progress.all_rounds == 1
        with pytest.raises(SuiteError, match="another suite"):
            Run(suite(policies=["lifecycle"]), tmp_path)

    @pytest.mark.parametrize("changes", [{"policies": ["stock"]}, {"sweep": {"device_tokens": [9_000]}}])
    def test_a_running_endpoint_cannot_be_what_needs_another_start(self, changes: Any, tmp_path: Path) -> None:
        with pytest.raises(SuiteError, match="--endpoint"):
            Run(suite(**{"policies": ["lru"], **changes}), tmp_path, "http://127.0.0.1:1/v1")


class TestGateSample:
    @pytest.mark.parametrize(
        ("limit", "sample"), [(None, {"admitted": 4.0, "held": 2.0}), (4, {"admitted": 4.0, "held": 2.0, "limit": 4.0})]
    )
    def test_it_is_that_of_the_engine_that_is_sampled(self, limit: int | None, sample: dict[str, float]) -> None:
        mine = {"id": "e", "admission": {"limit": limit, "found": limit, "admitted": 4, "held": 2, "figures": {}}}
        other = {"id": "f", "admission": {"limit": 1, "found": 1, "admitted": 1, "held": 9, "figures": {}}}
        assert gate_sample_of({"engines": [other, mine]}, "e") == sample
        assert gate_sample_of({"engines": [other]}, "e") == {}
