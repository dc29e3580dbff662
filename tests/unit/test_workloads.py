"""What every workload promises, and what is special to each of the generated ones."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
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

SHARED = Path(__file__).parents[2].parent / "shared"
TRACE = """\
{"workflow_id": "a", "calls": [{"agent": "one", "prompt_segments": [{"id": "x", "tokens": 30}], "prompt_tokens": 30},
 {"agent": "two", "prompt_segments": [{"id": "x", "tokens": 30}, {"id": "y", "tokens": 7}], "prompt_tokens": 37}]}
{"workflow_id": "b", "calls": [{"agent": "one", "prompt_segments": [{"id": "x", "tokens": 30}], "prompt_tokens": 30}]}
{"workflow_id": "c", "calls": [{"agent": "two", "prompt_segments": [{"id": "z", "tokens": 5}], "prompt_tokens": 5}]}
"""
GENERATED = ("finance", "hover", "selector", "swe")


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
        assert workload_names() == ["finance", "hover", "selector", "swe", "trace"]
        with pytest.raises(WorkloadError, match="unknown workload 'chat'; choose from finance, hover"):
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
    @settings(max_examples=30, deadline=None)
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
    @settings(deadline=None)
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


class TestLayout:
    @pytest.mark.parametrize("name", GENERATED)
    def test_anchor_first_shares_anchors_and_context_first_shares_context(self, name: str) -> None:
        anchor_first = make_workload(name, 1, layout="anchor-first")
        context_first = make_workload(name, 1, layout="context-first")
        for agent, anchor in anchor_first.anchors().items():
            assert anchor[0].id == f"{name}/anchor/{agent}"
        assert not any(context_first.anchors().values())
        assert anchor_first.statistics().prompt_tokens == context_first.statistics().prompt_tokens
        assert anchor_first.statistics().distinct_tokens != context_first.statistics().distinct_tokens
        for one, other in pairwise(context_first.workflows[0].calls):
            assert one.prompt[0] == other.prompt[0]


class TestHover:
    def test_two_to_six_rounds_of_about_a_thousand_tokens(self) -> None:
        workload = make_workload("hover", 3, workflows=300, layout="context-first")
        rounds, growth = Counter[int](), []
        for workflow in workload.workflows:
            judged = [call.prompt_tokens for call in workflow.calls if call.agent == "judge"]
            rounds[len(judged)] += 1
            growth += [later - earlier for earlier, later in pairwise(judged)]
            assert workflow.calls[0].agent == "decomposer"
            assert workflow.calls[-1].agent == "judge"
        assert set(rounds) == {2, 3, 4, 5, 6}
        assert 900 < statistics.mean(growth) < 1200
        assert {call.pause_s for _, _, call in workload.calls() if call.agent == "retriever"} == {2.0}

    def test_claims_of_a_file_decide_lengths_and_rounds(self, tmp_path: Path) -> None:
        file = tmp_path / "claims.jsonl"
        file.write_text('{"id": "a", "claim": "%s", "hops": 6}\n\n{"id": "b", "claim": "x", "hops": 6}\n' % ("w" * 40))
        workload = make_workload("hover", 1, workflows=2, questions=str(file))
        claims = {workflow.calls[0].prompt[1] for workflow in workload.workflows}
        assert claims == {Segment("hover/claim/a", 10), Segment("hover/claim/b", 1)}
        assert all(sum(call.agent == "judge" for call in each.calls) == 6 for each in workload.workflows)
        with pytest.raises(WorkloadError, match="has 2 claims, and 3 workflows are asked for"):
            make_workload("hover", 1, workflows=3, questions=str(file))

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("{", "line 2 is not JSON"),
            ("[]", "line 2: the line: .*a line has id, claim and hops"),
            ('{"id": "a", "claim": "c", "hops": 0}', "line 2: hops"),
            ('{"id": "a", "hops": 2}', "line 2: claim: Field required"),
        ],
    )
    def test_a_bad_line_is_named(self, line: str, says: str, tmp_path: Path) -> None:
        file = tmp_path / "claims.jsonl"
        file.write_text('{"id": "a", "claim": "c", "hops": 2}\n' + line)
        with pytest.raises(WorkloadError, match=says):
            make_workload("hover", 1, workflows=1, questions=str(file))

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match=r"cannot read .*none\.jsonl: No such file"):
            make_workload("hover", 1, questions=str(tmp_path / "none.jsonl"))

    def test_real_claims(self) -> None:
        file = SHARED / "questions" / "hover_dev.jsonl"
        if not file.exists():
            pytest.skip("no shared questions here")
        workload = make_workload("hover", 1, workflows=500, questions=str(file))
        assert 1800 < workload.statistics().prompt_tokens / workload.statistics().calls < 3000


class TestSwe:
    def test_contexts_of_tens_of_thousands_and_a_loop(self) -> None:
        workload = make_workload("swe", 1, workflows=100)
        assert 30_000 < workload.statistics().longest_prompt < 100_000
        runs = [sum(call.agent == "tester" for call in each.calls) for each in workload.workflows]
        assert set(runs) == {1, 2, 3, 4, 5, 6}
        times = [call.pause_s for _, _, call in workload.calls() if call.tool == "tests"]
        assert statistics.median(times) == pytest.approx(10, rel=0.15)

    def test_a_run_that_never_fails_asks_the_reviewer(self) -> None:
        for workflow in make_workload("swe", 1, fail=0).workflows:
            assert workflow.calls[-1].agent == "reviewer"
            assert sum(call.agent == "planner" for call in workflow.calls) == 1


class TestFinance:
    def test_the_order_of_agents_never_changes(self) -> None:
        orders = {tuple(call.agent for call in each.calls) for each in make_workload("finance", 1).workflows}
        assert orders == {("extractor", "analyst", "checker", "writer") * 2}

    def test_documents_are_shared_by_as_many_workflows_as_asked(self) -> None:
        for shared_by in (1, 4):
            workload = make_workload("finance", 1, workflows=8, shared_by=shared_by)
            documents = Counter(each.calls[0].prompt[1] for each in workload.workflows)
            assert set(documents.values()) == {shared_by}


def speakers(workload: Workload) -> list[list[str]]:
    return [[call.agent for call in each.calls if call.agent != "supervisor"] for each in workload.workflows]


def pairs(workload: Workload) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for spoken in speakers(workload):
        for one, other in pairwise(spoken):
            found[one][other] += 1
    return found


class TestSelector:
    def test_the_supervisor_speaks_before_every_agent(self) -> None:
        for workflow in make_workload("selector", 1).workflows:
            agents = [call.agent for call in workflow.calls]
            assert set(agents[::2]) == {"supervisor"}
            assert "supervisor" not in agents[1::2]
            assert 8 <= len(agents) / 2 <= 16

    @pytest.mark.parametrize("accuracy", [1.0, 0.78, 0.57, 0.3])
    def test_the_best_order_1_predictor_is_as_right_as_asked(self, accuracy: float) -> None:
        learned = pairs(make_workload("selector", 1, workflows=400, predictability=accuracy))
        guess = {agent: following.most_common(1)[0][0] for agent, following in learned.items()}
        tested = pairs(make_workload("selector", 1, workflows=800, predictability=accuracy))
        right = sum(following[guess[agent]] for agent, following in tested.items())
        assert right / sum(map(Counter.total, tested.values())) == pytest.approx(accuracy, abs=0.02)

    def test_below_chance_it_is_the_share_of_the_usual_successor(self) -> None:
        usual = pairs(make_workload("selector", 1, predictability=1.0))
        found = pairs(make_workload("selector", 1, workflows=800, predictability=0.12))
        right = sum(following[usual[agent].most_common(1)[0][0]] for agent, following in found.items())
        assert right / sum(map(Counter.total, found.values())) == pytest.approx(0.12, abs=0.02)

    @pytest.mark.parametrize("r", [1.0, 0.78, 0.57, 0.12, 0.0])
    def test_by_entropy_every_value_can_be_had(self, r: float) -> None:
        found = pairs(make_workload("selector", 1, workflows=800, predictability=r, measure="entropy"))
        following = sum(found.values(), Counter[str]())
        total = following.total()
        conditional = sum(entropy(each) * each.total() / total for each in found.values())
        assert 1 - conditional / entropy(following) == pytest.approx(r, abs=0.02)


def entropy(counts: Counter[str]) -> float:
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values() if count)
