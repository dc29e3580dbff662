"""A workload that changes half-way, and what policies hit after the change."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.benchmark.contestants import contestant
from serving.benchmark.records import CallRecord
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.drift import BegunAnew, Drift, Window
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.workloads import Lanes, make_workload
from serving.benchmark.workloads.change import LATER, Change, change
from serving.benchmark.workloads.trace_format import TraceCall, TraceSegment, TraceWorkflow, write_line
from serving.cli import app

COSTS = load_costs("qwen3-14b-a6000")


def a_change(workflows: int = 6) -> Change:
    before, after = (make_workload(name, 1, workflows=workflows, scale=0.1) for name in ("swe", "hover"))
    return change(before, after)


class TestChange:
    def test_both_use_as_much_of_a_cache_and_nothing_of_each_other_s(self) -> None:
        made = a_change()
        both = made.workload.workflows
        earlier = [one for one in both if one.id not in made.later]
        later = [one for one in both if one.id in made.later]
        assert (*earlier, *later) == both
        texts = [
            {segment.id for one in half for call in one.calls for segment in call.prompt} for half in (earlier, later)
        ]
        assert not texts[0] & texts[1]
        footprints = [type(made.workload)("half", tuple(half)).statistics().live_footprint for half in (earlier, later)]
        assert footprints[1] == made.live_footprint
        assert footprints[0] == pytest.approx(footprints[1], rel=0.05)

    def test_of_the_later_one_only_the_names_are_changed(self) -> None:
        after = make_workload("hover", 1, workflows=3)
        made = change(make_workload("swe", 1, workflows=3), after)
        for old, new in zip(after.workflows, made.workload.workflows[3:], strict=True):
            assert new.id == LATER + old.id
            assert [(c.agent, c.prompt_tokens, c.output_tokens, c.pause_s) for c in old.calls] == [
                (c.agent, c.prompt_tokens, c.output_tokens, c.pause_s) for c in new.calls
            ]
        assert made.workload.workflows[3].calls[1].prompt[0].id.startswith(LATER)


class TestBegunAnew:
    def test_until_the_change_it_does_the_same_and_then_it_has_learned_nothing(self) -> None:
        made = a_change(workflows=24)
        its = Setup(made.workload, Lanes(4), COSTS, EngineShape(3000, 0, longest_call=20_000))
        kept, anew = Replay(its, contestant("reuse-markov")), BegunAnew(its, contestant("reuse-markov"), made)
        learned: list[tuple[int, int]] = []
        for replay in (kept, anew):
            replay.run()
            learning = replay._engines[0].cache.learning
            assert learning is not None
            learned.append((learning.tiers["device"].labels, len(replay.calls)))
        assert learned[0][1] == learned[1][1] == len(list(made.workload.calls()))
        assert 0 < learned[1][0] < learned[0][0]

        def before_the_change(calls: list[CallRecord]) -> list[CallRecord]:
            at = min(call.sent_s for call in calls if call.workflow in made.later)
            return [call for call in calls if call.end_s < at]

        assert before_the_change(kept.calls) == before_the_change(anew.calls)


class TestDrift:
    def test_a_policy_that_learns_stands_there_twice_and_lru_once(self) -> None:
        policies = [contestant(name) for name in ("lru", "reuse")]
        windows = [Window(0, 20), Window(20, 10_000)]
        lines = Drift([a_change(), a_change()], policies, [0.3], windows, COSTS, lanes=4).lines()
        assert [list(line) for line in lines] == [["lru", "reuse", "reuse, anew"]] * 2
        assert all(len(hits) == 2 and hits[0] == hits[1] for line in lines for hits in line.values())

    @pytest.mark.parametrize("text", ["", "5", "5:", ":5", "5:5", "9:5", "-1:5", "a:b"])
    def test_what_is_no_window_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="give FROM:TO"):
            Window.parsed(text)

    def test_a_window_after_the_last_call_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"there are 0 calls, none of them in 501–1500"):
            Window.parsed("500:1500").hits([])


def a_trace(file: Path, calls: int) -> Path:
    def call(workflow: int, number: int) -> TraceCall:
        segments = [TraceSegment(id=f"{workflow}/{one}", tokens=50) for one in range(number + 1)]
        return TraceCall(agent="agent", prompt_segments=segments, prompt_tokens=50 * len(segments), output_tokens=5)

    lines = [
        write_line(TraceWorkflow(workflow_id=f"w{one}", source="made up", calls=[call(one, n) for n in range(calls)]))
        for one in range(6)
    ]
    file.write_text("".join(lines))
    return file


class TestCommand:
    def test_it_prints_a_line_for_each_share_and_window(self, tmp_path: Path) -> None:
        files = [str(a_trace(tmp_path / name, calls)) for name, calls in (("short.jsonl", 2), ("long.jsonl", 4))]
        options = "--policy lru,reuse-markov --capacity 0.8,1 --lanes 3 --rounds 2 --calls 0:5,5:24"
        run = CliRunner().invoke(app, ["bench", "drift", *files, *options.split()])
        assert run.exit_code == 0, run.output
        rows = run.stdout.splitlines()
        assert rows[0] == "| workload, pool | `lru` | `reuse-markov` | `reuse-markov, anew` |"
        assert [row.split(" | ")[0] for row in rows[2:]] == [
            f"| short, then long {share}, calls {window}" for share in ("0.8", "1") for window in ("1–5", "6–24")
        ]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--calls 7", "give FROM:TO"),
            ("--calls 100:200", "there are 24 calls"),
            ("--policy magic", "unknown policy"),
        ],
    )
    def test_bad_input_is_told(self, tmp_path: Path, options: str, message: str) -> None:
        files = [str(a_trace(tmp_path / name, 4)) for name in ("a.jsonl", "b.jsonl")]
        run = CliRunner().invoke(app, ["bench", "drift", *files, "--capacity", "1", *options.split()])
        assert run.exit_code == 2
        assert message in run.output
