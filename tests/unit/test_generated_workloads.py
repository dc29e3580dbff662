"""What is special to each of the generated workloads: rounds, loops, orders, predictability, layouts."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from serving.benchmark.workloads import Segment, Workload, WorkloadError, make_workload

SHARED = Path(__file__).parents[2].parent / "shared"


class TestLayout:
    @pytest.mark.parametrize("name", ["finance", "hover", "selector", "swe"])
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
