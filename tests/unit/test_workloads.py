"""What every workload promises, and the parts that all share: arrivals, token ids, the registry."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.benchmark.workloads import (
    Call,
    Lanes,
    Poisson,
    Segment,
    Times,
    Tokens,
    Workflow,
    Workload,
    WorkloadError,
    make_workload,
    workload_names,
)

TRACE = """\
{"workflow_id": "a", "calls": [{"agent": "one", "prompt_segments": [{"id": "x", "tokens": 30}], "prompt_tokens": 30},
 {"agent": "two", "prompt_segments": [{"id": "x", "tokens": 30}, {"id": "y", "tokens": 7}], "prompt_tokens": 37}]}
{"workflow_id": "b", "calls": [{"agent": "one", "prompt_segments": [{"id": "x", "tokens": 30}], "prompt_tokens": 30}]}
{"workflow_id": "c", "calls": [{"agent": "two", "prompt_segments": [{"id": "z", "tokens": 5}], "prompt_tokens": 5}]}
"""
GENERATED = ("finance", "fleet", "hover", "selector", "swe")


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.jsonl"
    file.write_text(TRACE.replace(",\n ", ", "))
    return file


@pytest.mark.parametrize("name", workload_names())
class TestWorkloadContract:
    """What every workload promises, whoever wrote it."""

    def make(self, name: str, trace_file: Path, seed: int = 1, **parameters: Any) -> Workload:
        if name == "trace":
            parameters = {"path": str(trace_file), "shuffle": True, **parameters}
        return make_workload(name, seed, **parameters)

    def test_the_same_seed_gives_the_same_workload(self, name: str, trace_file: Path) -> None:
        workload = self.make(name, trace_file)
        assert workload == self.make(name, trace_file)
        assert len(workload.workflows) >= 3

    def test_seeds_differ(self, name: str, trace_file: Path) -> None:
        assert len({self.make(name, trace_file, seed).workflows for seed in range(20)}) > 1

    def test_equal_ids_have_equal_lengths_and_workflows_have_ids_of_their_own(
        self, name: str, trace_file: Path
    ) -> None:
        workload = self.make(name, trace_file)
        lengths: dict[str, int] = {}
        for _, _, call in workload.calls():
            for segment in call.prompt:
                assert lengths.setdefault(segment.id, segment.tokens) == segment.tokens >= 1
        assert len({workflow.id for workflow in workload.workflows}) == len(workload.workflows)

    def test_a_prompt_is_as_long_as_its_segments_and_its_ids(self, name: str, trace_file: Path) -> None:
        tokens = Tokens(1 << 40)
        for _, _, call in self.make(name, trace_file, scale=0.05).calls():
            assert call.prompt
            assert call.prompt_tokens == sum(segment.tokens for segment in call.prompt)
            assert tokens.prompt_ids(call).shape == (call.prompt_tokens,)
            assert call.output_tokens >= 1
            assert call.pause_s >= 0

    def test_an_output_is_that_of_an_earlier_call_at_any_scale(self, name: str, trace_file: Path) -> None:
        for scale in (1, 0.03):
            for workflow, index, call in self.make(name, trace_file, scale=scale).calls():
                for segment in call.prompt:
                    if segment.output_of is not None:
                        assert segment.output_of < index
                        assert segment.tokens == workflow.calls[segment.output_of].output_tokens

    def test_prompts_share_prefixes_and_the_statistics_say_how_much(self, name: str, trace_file: Path) -> None:
        workload = self.make(name, trace_file, scale=0.05)
        figures = workload.statistics()
        tokens = Tokens(1 << 40)
        prompts = [tokens.prompt_ids(call).tolist() for _, _, call in workload.calls()]
        prefixes = set()
        for prompt in prompts:
            prefix = 0
            for token in prompt:
                prefix = hash((prefix, token))
                prefixes.add(prefix)
        assert figures.distinct_tokens == len(prefixes)
        assert figures.prompt_tokens == sum(map(len, prompts))
        assert figures.longest_prompt == max(map(len, prompts))
        assert figures.calls == len(prompts)
        assert figures.distinct_share < 0.8
        assert 0 < figures.live_footprint <= figures.prompt_tokens / figures.workflows

    def test_fewer_workflows_are_the_first_of_more(self, name: str, trace_file: Path) -> None:
        more = self.make(name, trace_file, workflows=3)
        fewer = self.make(name, trace_file, workflows=2)
        assert fewer.workflows == more.limited(2).workflows
        assert len(more.workflows) == 3

    def test_what_is_unknown_is_said_with_what_is_known(self, name: str, trace_file: Path) -> None:
        with pytest.raises(WorkloadError, match=r"unknown parameter 'scael'; it takes .*scale"):
            self.make(name, trace_file, scael=2)
        for scale in (0, -1, math.nan, math.inf, "1", True):
            with pytest.raises(WorkloadError, match=r"scale is .*; give a positive number"):
                self.make(name, trace_file, scale=scale)
        with pytest.raises(WorkloadError, match="workflows is 0; give a whole number from 1"):
            self.make(name, trace_file, workflows=0)


class TestRegistry:
    def test_names(self) -> None:
        assert workload_names() == ["finance", "fleet", "hover", "selector", "swe", "trace"]
        with pytest.raises(WorkloadError, match="unknown workload 'chat'; choose from finance, fleet, hover"):
            make_workload("chat", 1)
        with pytest.raises(WorkloadError, match="'trace' needs the parameter 'path'"):
            make_workload("trace", 1)

    @pytest.mark.parametrize(
        ("name", "parameters", "says"),
        [
            ("hover", {"layout": "mixed"}, "layout is 'mixed'; choose from anchor-first, context-first"),
            ("hover", {"tool_s": -1}, "tool_s is -1; give a number from 0"),
            ("hover", {"anchor_tokens": 1.5}, "anchor_tokens is 1.5; give a whole number from 1"),
            ("swe", {"fail": 1.1}, "fail is 1.1; give a number from 0 to 1"),
            ("swe", {"test_s": math.inf}, "test_s is inf; give a number from 0"),
            ("finance", {"shared_by": 0}, "shared_by is 0; give a whole number from 1"),
            ("selector", {"predictability": "high"}, "predictability is 'high'; give a number from 0 to 1"),
            ("selector", {"measure": "R"}, "measure is 'R'; choose from accuracy, entropy"),
        ],
    )
    def test_bad_values_are_named(self, name: str, parameters: dict[str, Any], says: str) -> None:
        with pytest.raises(WorkloadError, match=says):
            make_workload(name, 1, **parameters)


class TestWorkload:
    SMALL = Workload(
        "small",
        (
            Workflow(
                "w", (Call("a", (Segment("s", 100),), 10), Call("b", (Segment("s", 100), Segment("o", 10, 0)), 5))
            ),
            Workflow("v", (Call("a", (Segment("s", 100), Segment("t", 50)), 10),), arrival_s=3.0),
        ),
    )

    def test_statistics_by_hand(self) -> None:
        figures = self.SMALL.statistics()
        assert (figures.workflows, figures.calls, figures.prompt_tokens, figures.output_tokens) == (2, 3, 360, 25)
        assert (figures.distinct_tokens, figures.longest_prompt) == (160, 150)
        assert figures.live_footprint == (110 + 150) / 2

    def test_anchors_and_agents(self) -> None:
        assert self.SMALL.agents() == ("a", "b")
        assert self.SMALL.anchors()["a"] == (Segment("s", 100),)

    def test_check_names_the_call_and_a_scale_that_fits(self) -> None:
        self.SMALL.check(160)
        with pytest.raises(WorkloadError, match=r"'v', call 0 \(a\) needs 160 tokens .*scale the workload by 0.5 or"):
            self.SMALL.check(80)
        self.SMALL.scaled(0.5).check(80)

    def test_a_limit_below_one_is_refused(self) -> None:
        with pytest.raises(WorkloadError, match="limit of 0"):
            self.SMALL.limited(0)

    @given(st.sampled_from(GENERATED), st.integers(0, 5), st.floats(0.001, 3))
    @settings(max_examples=30)
    def test_scaling_keeps_what_is_shared(self, name: str, seed: int, factor: float) -> None:
        workload = make_workload(name, seed, workflows=3)
        scaled = workload.scaled(factor)
        for (_, _, old), (_, _, new) in zip(workload.calls(), scaled.calls(), strict=True):
            assert [(each.id, each.output_of) for each in old.prompt] == [
                (each.id, each.output_of) for each in new.prompt
            ]
            assert [each.tokens for each in new.prompt] == [max(1, round(each.tokens * factor)) for each in old.prompt]
            assert replace(old, prompt=(), output_tokens=1) == replace(new, prompt=(), output_tokens=1)


class TestArrivals:
    WORKLOAD = make_workload("hover", 1, workflows=2000)

    def test_poisson_has_its_rate_and_its_seed(self) -> None:
        times = Poisson(4.0, 7).start_times(self.WORKLOAD)
        assert times == Poisson(4.0, 7).start_times(self.WORKLOAD) != Poisson(4.0, 8).start_times(self.WORKLOAD)
        assert list(times) == sorted(times)
        assert times[-1] == pytest.approx(500, rel=0.1)

    def test_lanes_have_no_times_and_times_need_them(self) -> None:
        assert Lanes(3).start_times(self.WORKLOAD) is None
        with pytest.raises(WorkloadError, match="'hover-1-0' has no arrival time; choose lanes or poisson"):
            Times().start_times(self.WORKLOAD)
        timed = Workload("t", tuple(replace(each, arrival_s=2.5) for each in self.WORKLOAD.workflows[:2]))
        assert Times().start_times(timed) == (2.5, 2.5)

    @pytest.mark.parametrize("bad", [0, -1, True, 1.5])
    def test_bad_numbers_are_refused(self, bad: Any) -> None:
        with pytest.raises(WorkloadError, match="lanes is"):
            Lanes(bad)
        for rate in (0, -1, True, math.nan, math.inf):
            with pytest.raises(WorkloadError, match="per_s is"):
                Poisson(rate)


class TestTokens:
    @given(st.text(max_size=20), st.integers(1, 300), st.integers(1, 1 << 62), st.integers(0, 1000))
    def test_ids_are_in_range_and_depend_on_the_segment_alone(
        self, name: str, length: int, more: int, first: int
    ) -> None:
        segment = Segment(name, length)
        ids = Tokens(first + more, first).ids(segment)
        assert ids.shape == (length,)
        assert ids.dtype == np.int64
        assert ids.min() >= first
        assert ids.max() < first + more
        other = Tokens(first + more, first)
        other.ids(Segment("another", 5))
        assert np.array_equal(ids, other.ids(segment))

    def test_large_vocabularies_share_nothing_by_accident(self) -> None:
        tokens = Tokens(1 << 40)
        firsts = [int(tokens.ids(Segment(f"s{number}", 2))[0]) for number in range(5000)]
        assert len(set(firsts)) == 5000

    def test_another_salt_is_another_text(self) -> None:
        segment = Segment("s", 20)
        assert not np.array_equal(Tokens(280, salt="a").ids(segment), Tokens(280, salt="b").ids(segment))

    def test_memory_is_bounded_and_forgetting_changes_nothing(self) -> None:
        tokens = Tokens(1 << 40, cached_tokens=100)
        first = tokens.ids(Segment("s0", 30)).copy()
        for number in range(50):
            tokens.ids(Segment(f"s{number}", 30))
            assert tokens.cached_tokens <= 100
        tokens.ids(Segment("large", 101))
        assert tokens.cached_tokens <= 100
        assert np.array_equal(tokens.ids(Segment("s0", 30)), first)

    def test_a_caller_cannot_change_what_is_remembered(self) -> None:
        with pytest.raises(ValueError, match="read-only"):
            Tokens(280).ids(Segment("s", 3))[0] = 1

    def test_real_outputs_stand_where_they_are_known(self) -> None:
        tokens = Tokens(1 << 40)
        call = Call("a", (Segment("s", 3), Segment("o", 4, output_of=0)), 1)
        made_up = tokens.prompt_ids(call).tolist()
        assert tokens.prompt_ids(call, {1: [9]}).tolist() == made_up
        assert tokens.prompt_ids(call, {0: [5, 6, 7, 8]}).tolist() == [*made_up[:3], 5, 6, 7, 8]
        assert tokens.prompt_ids(call, {0: [5, 6, 7, 8, 9]}).tolist() == [*made_up[:3], 5, 6, 7, 8]
        assert tokens.prompt_ids(call, {0: [5]}).tolist() == [*made_up[:3], 5, *made_up[4:]]
        assert tokens.prompt_ids(call, {0: []}).tolist() == made_up

    @pytest.mark.parametrize(("vocabulary", "first"), [(0, 0), (10, 10), (10, -1), (1 << 63, 0)])
    def test_an_empty_range_is_refused(self, vocabulary: int, first: int) -> None:
        with pytest.raises(WorkloadError, match="give 0 <= first < vocabulary"):
            Tokens(vocabulary, first)
