"""The workload of many teams: who is popular, who comes at once, and what children begin with."""

from __future__ import annotations

from collections import Counter

import pytest

from serving.benchmark.workloads import Times, WorkloadError, make_workload
from serving.benchmark.workloads.fleet import ROLES


def team(agent: str) -> str:
    return agent.rpartition("-")[2]


def test_a_workflow_is_one_teams_and_few_teams_are_popular() -> None:
    workload = make_workload("fleet", 1, workflows=400, teams=20, skew=1.5, burst=0)
    counts = Counter(team(workflow.calls[0].agent) for workflow in workload.workflows)
    for workflow in workload.workflows:
        assert len({team(call.agent) for call in workflow.calls}) == 1
    assert counts.most_common(1)[0][1] > 5 * 400 / 20
    assert {agent.rpartition("-")[0] for agent in workload.agents()} == set(ROLES)


def test_workflows_come_in_the_order_of_their_times_and_bursts_are_of_one_team() -> None:
    workload = make_workload("fleet", 1, workflows=300, per_s=0.5, burst=30, burst_every_s=50, children=0)
    starts = Times().start_times(workload)
    assert list(starts) == sorted(starts)
    at_once = [one for one, start in zip(workload.workflows, starts, strict=True) if 50 <= start < 52]
    assert len(at_once) >= 30
    assert Counter(team(one.calls[0].agent) for one in at_once).most_common(1)[0][1] >= 30


def test_a_child_begins_with_what_its_parents_worker_has_seen() -> None:
    workload = make_workload("fleet", 2, workflows=200, children=1, burst=0)
    by_id = {workflow.id: workflow for workflow in workload.workflows}
    children = [workflow for workflow in workload.workflows if workflow.parent in by_id]
    assert len(children) > 50
    for child in children:
        parent = by_id[child.parent or ""]
        workers = [call for call in parent.calls if call.agent == child.calls[0].agent]
        seen = [segment.id for segment in child.calls[0].prompt]
        assert any([segment.id for segment in call.prompt] == seen[: len(call.prompt)] for call in workers)
        assert child.arrival_s is not None
        assert parent.arrival_s is not None
        assert child.arrival_s > parent.arrival_s


@pytest.mark.parametrize(("parameter", "value"), [("teams", 0), ("per_s", 0), ("children", 2), ("burst", -1)])
def test_values_out_of_range_are_refused(parameter: str, value: int) -> None:
    with pytest.raises(WorkloadError, match=parameter):
        make_workload("fleet", 1, **{parameter: value})
