"""The benchmark's figures: what is counted, what is compared, and how sure it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest
from benchmark_records import COUNTERS, made_up, workflow_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.benchmark.bands import band, saturated_samples
from serving.benchmark.bootstrap import Array, estimate, percentile_ratio
from serving.benchmark.contrast import Contrast, contrast, default_baseline, way
from serving.benchmark.figures import results_of
from serving.benchmark.policy_figures import policy_figures
from serving.benchmark.records import CallRecord, PointSpec, Records, RoundRecord
from serving.benchmark.workflow_figures import WorkflowFigures, workflow_figures

durations = st.lists(st.floats(0.01, 100), min_size=1, max_size=4)


@st.composite
def runs(draw: st.DrawFn) -> list[CallRecord]:
    """A few rounds of a few workflows, enough for an interval."""
    calls: list[CallRecord] = []
    for round_ in range(draw(st.integers(1, 3))):
        for number in range(draw(st.integers(6, 8))):
            seconds, hit = draw(durations), draw(st.integers(0, 800))
            calls += workflow_calls("p", "lru", round_, f"w{number}", seconds, hit, draw(st.floats(0, 5)))
    return calls


def scaled(figures: list[WorkflowFigures], factor: float) -> list[WorkflowFigures]:
    names = ("latency_s", "latency_without_tools_s", "ttft_s")
    return [replace(each, **{name: getattr(each, name) * factor for name in names}) for each in figures]


class TestWorkflows:
    def test_latency_runs_from_the_first_call_to_the_last_and_pauses_between_come_off(self) -> None:
        (figures,) = workflow_figures(workflow_calls("p", "lru", 0, "w", [1.0, 2.0], pause=0.5))
        assert figures.latency_s == pytest.approx(3.5)
        assert figures.latency_without_tools_s == pytest.approx(3.0)
        assert figures.ttft_s == pytest.approx(0.6)

    def test_a_tool_beside_a_running_call_takes_nothing_off(self) -> None:
        calls = workflow_calls("p", "lru", 0, "w", [1.0, 2.0], pause=4.0)
        beside = replace(calls[0], index=2, agent="tester", sent_s=0.0, end_s=3.0, pause_s=0.0)
        (figures,) = workflow_figures([*calls, beside])
        assert figures.latency_s == pytest.approx(7.0)
        assert figures.latency_without_tools_s == pytest.approx(5.0)

    def test_failed_calls_are_counted_and_their_tokens_are_not(self) -> None:
        calls = workflow_calls("p", "lru", 0, "w", [1.0, 1.0])
        (figures,) = workflow_figures([calls[0], replace(calls[1], error="503", first_token_s=None)])
        assert (figures.calls, figures.failed_calls, figures.prompt, figures.ttft_calls) == (2, 1, 1000, 1)


class TestShares:
    @given(runs())
    def test_shares_add_up_to_one(self, calls: list[CallRecord]) -> None:
        figures = policy_figures([(RoundRecord("p", "lru", 0, 1.0), calls)], workflow_figures(calls))
        assert figures["hit_device"] + figures["hit_host"] + figures["computed"] == pytest.approx(1)
        assert min(figures["hit_device"], figures["hit_host"], figures["computed"]) >= 0

    def test_engines_counters_stand_in_for_calls_without_usage(self) -> None:
        record = RoundRecord("p", "lru", 0, 1.0, {"prompt": 100, "hit_device": 30, "hit_host": 20})
        assert policy_figures([(record, [])], [])["computed"] == pytest.approx(0.5)

    def test_what_was_not_measured_is_none(self) -> None:
        figures = policy_figures([(RoundRecord("p", "lru", 0, 0.0), [])], [])
        for name in ("latency_mean_s", "ttft_p95_s", "hit_share", "regret_tokens", "policy_cpu_s"):
            assert figures[name] is None


class TestContrast:
    @settings(max_examples=30)
    @given(runs())
    def test_a_policy_over_itself_is_one(self, calls: list[CallRecord]) -> None:
        figures = workflow_figures(calls)
        itself = contrast(figures, figures, "lru")
        for ratio in (itself.latency_mean, itself.latency_without_tools_mean, itself.ttft_mean):
            assert ratio == pytest.approx([1, 1, 1])
        assert itself.hit_share_difference == pytest.approx([0, 0, 0])

    @settings(max_examples=30)
    @given(runs(), st.floats(0.1, 10))
    def test_scaling_the_latencies_scales_the_ratio(self, calls: list[CallRecord], factor: float) -> None:
        figures = workflow_figures(calls)
        ratio = contrast(scaled(figures, factor), figures, "lru").latency_mean
        assert ratio == pytest.approx([factor, factor, factor])

    def test_pairs_match_whatever_the_order(self) -> None:
        figures = workflow_figures(c for w in "abcdef" for c in workflow_calls("p", "x", 0, w, [ord(w) - 96.0]))
        slower = scaled(figures, 2.0)
        assert contrast(slower[::-1], figures, "lru") == contrast(slower, figures[::-1], "lru")

    def test_a_workflow_with_a_failed_call_is_left_out_of_both(self) -> None:
        figures = workflow_figures(c for w in "abcdefg" for c in workflow_calls("p", "x", 0, w, [1.0]))
        failed = [replace(figures[0], failed_calls=1, latency_s=1000.0), *figures[1:]]
        for result in (contrast(failed, figures, "lru"), contrast(figures, failed, "lru")):
            assert (result.pairs, result.left_out_failed) == (6, 1)
            assert result.latency_mean == pytest.approx([1, 1, 1])

    def test_without_a_common_workflow_there_is_no_ratio(self) -> None:
        figures = workflow_figures(workflow_calls("p", "x", 0, "a", [1.0]))
        result = contrast(figures, [replace(figures[0], round=1)], "lru")
        assert (result.pairs, result.latency_mean) == (0, None)

    def test_a_handful_of_pairs_is_too_few_for_a_ratio(self) -> None:
        figures = workflow_figures(c for w in "abcde" for c in workflow_calls("p", "x", 0, w, [1.0]))
        result = contrast(figures, figures, "lru")
        assert (result.pairs, result.latency_mean, result.hit_share_difference) == (5, None, None)

    def test_pairs_of_unequal_work_are_counted(self) -> None:
        one, other = (workflow_figures(workflow_calls("p", "x", 0, "a", [1.0] * n)) for n in (1, 2))
        assert contrast(one, other, "lru").unequal == 1


class TestBootstrap:
    def test_is_deterministic(self) -> None:
        records = made_up({"lru": 1.0, "reuse": 0.9})
        assert results_of(records, "s", {}, True) == results_of(records, "s", {}, True)

    @pytest.mark.parametrize("between", [0.0, 0.1])
    def test_the_interval_covers_the_truth_about_as_often_as_it_says(self, between: float) -> None:
        generator, covered, trials = np.random.default_rng(7), 0, 150
        for _ in range(trials):
            moods = generator.normal(0, between, 8)
            rounds = [_round(generator, mood) for mood in moods]
            ((_, low, high),) = estimate(rounds, [lambda sums: sums[..., 0] / sums[..., 1]])  # type: ignore[misc]
            covered += low <= 0.8 <= high
        assert covered / trials >= 0.86

    def test_percentiles_of_unpaired_samples(self) -> None:
        sample = np.random.default_rng(0).gamma(4.0, 1.0, 400)
        value, low, high = percentile_ratio(sample, 2 * sample, 95) or [0, 0, 0]
        assert value == pytest.approx(2.0)
        assert 1.5 < low < 2 < high < 2.7
        assert percentile_ratio(sample, sample[:0], 95) is None


def _round(generator: np.random.Generator, mood: float) -> Array:
    work = generator.gamma(4.0, 1.0, 20)
    return np.column_stack([work * (0.8 + mood + generator.normal(0, 0.2, 20)), work])


def gained(hit: float, latency: float, noise: float = 0.001) -> Contrast:
    ratio = [latency, latency - noise, latency + noise]
    return Contrast("lru", 9, 0, 0, ratio, ratio, ratio, [hit, hit - noise, hit + noise])


class TestWay:
    def test_is_the_part_of_the_distance(self) -> None:
        ways, missing = way({"reuse": gained(0.05, 0.9), "oracle": gained(0.2, 0.6)})
        assert ways["reuse"]["hit"]["to_oracle"] == pytest.approx(0.25)
        assert ways["reuse"]["latency"]["to_oracle"] == pytest.approx(0.25)
        assert ways["oracle"]["hit"]["to_oracle"] == 1
        assert missing["hit"] == {"to_belady": "belady was not run here", "to_unlimited": "unlimited was not run here"}

    @pytest.mark.parametrize(
        ("ideal", "why"),
        [(gained(0.2, 0.6, 0.5), "within noise"), (gained(0.005, 0.995), "less than 1%"), (gained(-0.1, 1.2), "less")],
    )
    def test_there_is_none_to_what_is_not_clearly_better(self, ideal: Contrast, why: str) -> None:
        ways, missing = way({"reuse": gained(0.05, 0.9), "belady": ideal})
        for figure in ("hit", "latency"):
            assert ways["reuse"][figure]["to_belady"] is None
            assert why in missing[figure]["to_belady"]


class TestBand:
    @pytest.mark.parametrize(
        ("evicted", "samples", "difference", "expected"),
        [
            (None, None, 0.2, "unknown"),
            (0.005, None, 0.2, "nothing evicted"),
            (0.5, 0.9, 0.2, "saturated"),
            (0.5, 0.1, 0.0, "saturated"),
            (0.5, None, 0.2, "thrashing"),
            (0.1, None, 0.0, "some evicted"),
        ],
    )
    def test_rules(self, evicted: float | None, samples: float | None, difference: float, expected: str) -> None:
        assert band(evicted, samples, {"reuse": gained(difference, 1.0)})[0] == expected

    def test_a_single_policy_cannot_show_saturation(self) -> None:
        assert band(0.5, None, {})[0] == "thrashing"
        assert band(0.5, None, {"unlimited": gained(0.5, 0.5), "reuse": gained(0.0, 1.0)})[0] == "saturated"

    def test_saturated_samples(self) -> None:
        full = {"active": 95.0, "running": 95.0, "retired": 0.0, "prefetched": 0.0, "free": 5.0}
        assert saturated_samples([full, {**full, "running": 50.0}]) == 0.5
        assert saturated_samples([{"active": 95.0, "free": 5.0}]) is None


class TestResults:
    def test_are_ready_for_json_and_hold_every_figure(self) -> None:
        results = results_of(made_up({"stock": 1.0, "lru": 1.0, "reuse": 0.8, "belady": 0.6}), "laptop", {"m": 1}, True)
        assert orjson.loads(orjson.dumps(results)) == results
        (point,) = results["points"]
        assert (results["schema"], results["rounds"], point["baseline"], point["way_from"]) == (1, 3, "stock", "lru")
        assert point["ratios"]["reuse"]["over"] == "stock"
        value, low, high = point["ratios"]["reuse"]["latency_without_tools_mean"]
        assert value == pytest.approx(0.8, abs=0.05)
        assert low <= value <= high
        assert 0.3 < point["way"]["reuse"]["latency"]["to_belady"] < 0.7
        reuse = point["policies"]["reuse"]
        assert reuse["evicted"]["device"] == {"recency": 30_000, "retired": 60_000}
        assert reuse["prefetch"]["used"] == 240
        assert set(reuse["ttft_by_agent"]) == {"planner", "coder"}
        low, high = reuse["intervals"]["hit_share"]
        assert low <= reuse["hit_share"] <= high
        assert len(reuse["latencies"]) == reuse["workflows"] == 36
        assert len(reuse["timeline"]) == 50

    def test_policies_missing_at_a_point_are_tolerated(self) -> None:
        points = [PointSpec.of(concurrency=8), PointSpec.of(concurrency=16), PointSpec.of(concurrency=32)]
        records = made_up({"lru": 1.0, "reuse": 0.9}, points)
        kept = {
            key: value
            for key, value in records.rounds.items()
            if key[0] != points[2].key and key[:2] != (points[1].key, "lru")
        }
        first, second, third = results_of(Records(records.points, kept), "s", {}, False)["points"]
        assert set(first["ratios"]) == {"reuse"}
        assert (second["baseline"], second["ratios"], set(second["policies"])) == (None, {}, {"reuse"})
        assert third["policies"] == {}

    def test_evictions_are_taken_from_another_policy_if_the_baseline_counted_none(self) -> None:
        records = made_up({"stock": 1.0, "lru": 1.0, "reuse": 0.7})
        rounds = {
            key: (replace(record, counters={} if key[1] == "stock" else COUNTERS), calls)
            for key, (record, calls) in records.rounds.items()
        }
        assert results_of(Records(records.points, rounds), "s", {}, True)["points"][0]["band"] == "thrashing"

    def test_a_baseline_that_was_not_run_is_an_error_that_lists_the_others(self) -> None:
        with pytest.raises(ValueError, match="choose one of: lru, reuse"):
            results_of(made_up({"lru": 1.0, "reuse": 1.0}), "s", {}, True, baseline="stock")

    def test_the_default_baseline_is_the_first_of_a_list(self) -> None:
        assert default_baseline(["reuse", "lru", "stock"]) == "stock"
        assert default_baseline(["reuse"]) is None
        assert default_baseline(["reuse", "lru"], "reuse") == "reuse"
