"""What `reuse` promises of hits, on small generated workloads: it follows changes, and no forecast misleads it."""

from __future__ import annotations

import pytest

from serving.benchmark.contestants import contestant
from serving.benchmark.hit_table import percent
from serving.benchmark.records import CallRecord
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.drift import Drift, Window
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.workloads import Lanes, Workload, make_workload
from serving.benchmark.workloads.change import change

COSTS = load_costs("qwen3-14b-a6000")
# Calls after which a change is to be forgotten.
SETTLED = 500


def calls_of(workload: Workload, policy: str, device: int) -> list[CallRecord]:
    replay = Replay(Setup(workload, Lanes(8), COSTS, EngineShape(device, 0, longest_call=20_000)), contestant(policy))
    replay.run()
    return replay.calls


@pytest.mark.parametrize(("before", "after"), [(("swe", 20), ("hover", 60)), (("hover", 40), ("swe", 48))])
def test_after_a_change_of_workload_it_is_soon_as_good_as_one_begun_anew(
    before: tuple[str, int], after: tuple[str, int]
) -> None:
    old, new = (make_workload(name, 1, workflows=workflows, scale=0.1) for name, workflows in (before, after))
    made, windows = change(old, new), [Window(SETTLED, 10_000)]
    (line,) = Drift([made], [contestant("reuse")], [0.3], windows, COSTS, lanes=8).lines()
    assert line["reuse"][0] > line["reuse, anew"][0] - 2


@pytest.mark.parametrize(("workload", "device"), [("hover", 8_000), ("swe", 16_000), ("selector", 8_000)])
def test_forecasts_that_are_always_wrong_cost_at_most_a_point(workload: str, device: int) -> None:
    made = make_workload(workload, 1, workflows=40, scale=0.1)
    misled, alone = (percent(calls_of(made, policy, device)) for policy in ("reuse-noisy(1)", "reuse"))
    assert misled > alone - 1
