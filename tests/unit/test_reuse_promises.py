"""What `reuse` promises of hits, on small generated workloads: it follows changes, and no forecast misleads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.benchmark.contestants import contestant
from serving.benchmark.records import CallRecord
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay, Setup
from serving.benchmark.workloads import Lanes, Workload, make_workload

COSTS = load_costs("qwen3-14b-a6000")
# Calls after which a change is to be forgotten.
SETTLED = 500


def calls_of(workload: Workload, policy: str, device: int) -> list[CallRecord]:
    replay = Replay(Setup(workload, Lanes(8), COSTS, EngineShape(device, 0, longest_call=20_000)), contestant(policy))
    replay.run()
    return replay.calls


def hits(calls: list[CallRecord]) -> float:
    """In percent of the prompts."""
    return 100 * sum(call.hit_device for call in calls) / sum(call.prompt_tokens for call in calls)


@pytest.mark.parametrize(
    ("before", "after", "device"), [(("swe", 20), ("hover", 60), 8_000), (("hover", 40), ("swe", 48), 16_000)]
)
def test_after_a_change_of_workload_it_is_soon_as_good_as_a_new_one(
    before: tuple[str, int], after: tuple[str, int], device: int
) -> None:
    """Within 2 points, over `lru`: stragglers of the old workload take room, whatever the policy."""
    old = make_workload(before[0], 1, workflows=before[1], scale=0.1)
    made = make_workload(after[0], 2, workflows=after[1], scale=0.1)
    new = Workload("new", tuple(replace(one, id=f"new {one.id}") for one in made.workflows))
    changed = Workload("changed", (*old.workflows, *new.workflows))

    def gain(workload: Workload) -> float:
        reuse, lru = (
            [call for call in calls_of(workload, policy, device) if call.workflow.startswith("new")]
            for policy in ("reuse", "lru")
        )
        return hits(reuse[SETTLED:]) - hits(lru[SETTLED:])

    assert gain(changed) > gain(new) - 2


@pytest.mark.parametrize(("workload", "device"), [("hover", 8_000), ("swe", 16_000), ("selector", 8_000)])
def test_forecasts_that_are_always_wrong_cost_at_most_a_point(workload: str, device: int) -> None:
    made = make_workload(workload, 1, workflows=40, scale=0.1)
    misled, alone = (hits(calls_of(made, policy, device)) for policy in ("reuse-noisy(1)", "reuse"))
    assert misled > alone - 1
