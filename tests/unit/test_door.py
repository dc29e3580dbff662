"""Admission in a replay: who is held comes in, nobody is lost, and a limit is kept."""

from __future__ import annotations

import pytest

from cache_actor.admission import Bounds
from serving.benchmark.contestants import ContestantError, contestant
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.door import PERIOD_S
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.workloads import Lanes, Poisson, Workload, make_workload
from serving.benchmark.workloads.arrivals import Arrivals

COSTS = load_costs("qwen3-14b-a6000")
QUICK = Poisson(20.0)
HOUR_S = 3600.0
WORKLOAD = make_workload("hover", 3, workflows=24, scale=0.25)


def replayed(policy: str, arrivals: Arrivals = QUICK, share: float = 2.0, engines: int = 1) -> Replay:
    """On engines whose cache holds so many workflows."""
    tokens = round(share * WORKLOAD.statistics().live_footprint)
    longest = max(call.prompt_tokens + call.output_tokens for _, _, call in WORKLOAD.calls())
    shape = EngineShape(max(tokens, longest + 1), 0, longest_call=longest)
    replay = Replay(Setup(WORKLOAD, arrivals, COSTS, shape, engines), contestant(policy))
    replay.run()
    return replay


def ends(replay: Replay) -> dict[str, float]:
    """When each call was over. Events cut decode, the search for limits among them: that moves it by microseconds."""
    return {f"{call.workflow}/{call.index}": call.end_s for call in replay.calls}


def at_once(replay: Replay, workload: Workload) -> int:
    """The most workflows of which a call was under way or waited inside an engine."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for call in replay.calls:
        assert call.first_token_s is not None
        first[call.workflow] = min(first.get(call.workflow, 1e9), call.first_token_s)
        last[call.workflow] = max(last.get(call.workflow, 0.0), call.end_s)
    assert len(first) == len(workload.workflows)
    return max(sum(first[other] <= begin < last[other] for other in first) for begin in first.values())


@pytest.mark.parametrize("limit", ["1", "3", "miss-curve", "balance", "aimd", "working-set", "gradient", "pause"])
@pytest.mark.parametrize("engines", [1, 2])
def test_every_call_of_every_workflow_is_served(limit: str, engines: int) -> None:
    replay = replayed(f"lru@{limit}", engines=engines)
    assert len(replay.calls) == WORKLOAD.statistics().calls
    assert not any(call.error for call in replay.calls)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_are_in_than_the_limit_says(limit: int) -> None:
    replay = replayed(f"lru@{limit}")
    assert at_once(replay, WORKLOAD) == limit
    assert max(sample["admitted"] for sample in replay.record.timeline) <= limit
    assert all(sample["limit"] == limit for sample in replay.record.timeline)


def test_a_limit_that_nobody_reaches_changes_nothing() -> None:
    assert ends(replayed("lru@24")) == pytest.approx(ends(replayed("lru")), abs=0.01)


@pytest.mark.parametrize("limit", ["miss-curve", "balance", "aimd", "working-set", "gradient", "pause"])
def test_without_pressure_everybody_comes_in_at_once(limit: str) -> None:
    roomy = replayed(f"reuse@{limit}", share=60.0)
    assert not any("limit" in sample for sample in roomy.record.timeline)
    assert ends(roomy) == pytest.approx(ends(replayed("reuse", share=60.0)), abs=0.01)


def test_lanes_go_on_behind_a_limit() -> None:
    replay = replayed("lru@2", Lanes(6))
    assert len({call.workflow for call in replay.calls}) == 24
    assert at_once(replay, WORKLOAD) == 2


def test_the_time_at_the_door_is_part_of_a_call() -> None:
    calls = {(call.workflow, call.index): call for call in replayed("lru@1").calls}
    last = calls[WORKLOAD.workflows[-1].id, 0]
    assert last.sent_s < 5.0  # when it arrived
    assert last.first_token_s is not None
    assert last.first_token_s - last.sent_s > 5.0


class TestWaits:
    """Twice as many come as a limit lets through, for an hour of the engine's time: contexts are small, tools slow."""

    MOST_S, IDLE_S = 120.0, 20.0

    @staticmethod
    def an_hour(bounds: Bounds, rate: float = 0.05) -> Replay:
        workload = make_workload("hover", 5, workflows=round(HOUR_S * rate), scale=0.02, output_scale=0.1, tool_s=10.0)
        longest = max(call.prompt_tokens + call.output_tokens for _, _, call in workload.calls())
        shape = EngineShape(20 * longest, 0, longest_call=longest)
        replay = Replay(Setup(workload, Poisson(rate, 5), COSTS, shape, bounds=bounds), contestant("lru@1"))
        replay.run()
        assert len(replay.calls) == workload.statistics().calls
        return replay

    def test_nobody_is_held_longer_than_is_promised(self) -> None:
        bounded = self.an_hour(Bounds(max_wait_s=self.MOST_S, idle_s=self.IDLE_S))
        assert bounded.record.seconds > HOUR_S
        assert self.MOST_S / 2 < bounded.longest_wait_s <= self.MOST_S + PERIOD_S

    def test_without_a_promise_waits_have_no_end(self) -> None:
        assert self.an_hour(Bounds()).longest_wait_s > 10 * self.MOST_S

    def test_a_workflow_between_two_calls_gives_its_place_to_one_that_waits(self) -> None:
        kept, given = self.an_hour(Bounds(), 0.03), self.an_hour(Bounds(idle_s=1.0), 0.03)
        assert given.longest_wait_s < kept.longest_wait_s


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lru@", "unknown admission"),
        ("lru@0", "at least 1"),
        ("lru@balance:height=1", "no parameter 'height'"),
        ("lru@balance:weight=-1", "must be positive"),
        ("nobody@16", "unknown policy"),
    ],
)
def test_a_name_that_makes_no_sense_is_refused(name: str, said: str) -> None:
    with pytest.raises(ContestantError, match=said):
        contestant(name)
