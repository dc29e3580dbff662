"""Recorded workflows as workloads: what a file says is kept to the token, and what is wrong with it is named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.workloads import Call, Segment, Tokens, Workflow, Workload, WorkloadError, make_workload
from serving.benchmark.workloads.blocks import Cutter, intervals

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"


def text(name: str, tokens: int) -> dict[str, Any]:
    return {"id": name, "tokens": tokens}


def step(agent: str = "a", **more: Any) -> dict[str, Any]:
    """A call with a prompt of 10 tokens, unless told otherwise."""
    return {"agent": agent, "prompt_segments": [text("s", 10)], "prompt_tokens": 10, "output_tokens": 3, **more}


def blocks(runs: list[list[int]], prompt_tokens: int, **more: Any) -> dict[str, Any]:
    return {"agent": "a", "blocks_rle": runs, "prompt_tokens": prompt_tokens, "output_tokens": 1, **more}


def line(*calls: dict[str, Any], name: str = "w", **more: Any) -> dict[str, Any]:
    return {"workflow_id": name, "calls": list(calls), **more}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(*lines: dict[str, Any] | str, **parameters: Any) -> Workload:
        file = tmp_path / "trace.jsonl"
        file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
        return make_workload("trace", 0, path=str(file), **parameters)

    return load


def numbers(workload: Workload) -> list[list[list[int]]]:
    tokens = Tokens(1 << 40)
    return [[tokens.prompt_ids(call).tolist() for call in workflow.calls] for workflow in workload.workflows]


class TestSteps:
    def test_segments_are_kept(self, load: Any) -> None:
        workload = load(line(step("a", prompt_segments=[text("s", 4), text("t", 6)], tool="look"), parent="p"))
        call = Call("a", (Segment("s", 4), Segment("t", 6)), 3, tool="look")
        assert workload == Workload("trace:trace", (Workflow("w", (call,), parent="p"),))

    def test_equal_segments_are_one_object(self, load: Any) -> None:
        workload = load(line(step()), line(step(), name="v"))
        one, other = (workflow.calls[0].prompt[0] for workflow in workload.workflows)
        assert one is other

    def test_pauses_and_arrivals_follow_the_recorded_times(self, load: Any) -> None:
        calls = step(start_s=5, end_s=7), step(start_s=9.5, end_s=12), step(start_s=11, end_s=12)
        for scale in (1, 0.5):
            workflow = load(line(*calls), time_scale=scale).workflows[0]
            assert workflow.arrival_s == 5 * scale
            assert [call.pause_s for call in workflow.calls] == [2.5 * scale, 0, 0]

    def test_a_step_without_a_model_call_is_a_pause_with_its_tool(self, load: Any) -> None:
        tool = {"agent": "shell", "prompt_tokens": 0, "llm": False, "tool": "make", "start_s": 3, "end_s": 8}
        timed = load(line(step(start_s=0, end_s=2), tool, step(start_s=9, end_s=10))).workflows[0].calls
        assert [(call.pause_s, call.tool) for call in timed] == [(7, "make"), (0, None)]
        untimed = load(line(step(tool="own"), tool, tool, step())).workflows[0].calls
        assert [(call.pause_s, call.tool) for call in untimed] == [(10, "own"), (0, None)]

    def test_a_call_whose_prompt_was_not_recorded_is_a_step_named_after_its_agent(self, load: Any) -> None:
        unknown = {"agent": "surfer", "prompt_tokens": 0, "output_tokens": None}
        calls = load(line(unknown, step(start_s=1), unknown, step(start_s=4, output_tokens=None))).workflows[0].calls
        assert [(call.agent, call.pause_s, call.tool) for call in calls] == [("a", 3, "surfer"), ("a", 0, None)]
        assert calls[1].output_tokens == 1

    def test_an_unknown_end_is_the_start_and_a_time_for_each_token(self, load: Any) -> None:
        calls = step(start_s=1, output_tokens=20), step(start_s=4)
        assert load(line(*calls)).workflows[0].calls[0].pause_s == 3
        assert load(line(*calls), output_s_per_token=0.1).workflows[0].calls[0].pause_s == 1
        assert load(line(*calls), output_s_per_token=9).workflows[0].calls[0].pause_s == 0

    def test_a_limit_reads_no_further_and_shuffling_comes_first(self, load: Any) -> None:
        lines = [line(step(), name=f"w{number}") for number in range(9)]
        assert [each.id for each in load(*lines, "bad", workflows=2).workflows] == ["w0", "w1"]
        shuffled = load(*lines, shuffle=True)
        assert sorted(each.id for each in shuffled.workflows) == [each["workflow_id"] for each in lines]
        assert load(*lines, shuffle=True, workflows=4).workflows == shuffled.workflows[:4]


class TestBlocks:
    def test_prompts_are_exact_and_share_to_the_token(self, load: Any) -> None:
        calls = blocks([[5, 3]], 45), blocks([[5, 2], [90, 1]], 40), blocks([[5, 2], [90, 2]], 64), blocks([[5, 1]], 20)
        workload = load(line(*calls, block_size=16, hash_id_scope="local"))
        assert [call.prompt_tokens for call in workload.workflows[0].calls] == [45, 40, 64, 20]
        first, second, third, fourth = numbers(workload)[0]
        assert first[:32] == second[:32] == third[:32]
        assert first[32] != second[32]
        assert second == third[:40]
        assert fourth[:16] == first[:16]
        assert fourth[16] != first[16]

    @pytest.mark.parametrize(
        ("more", "parameters", "shared"),
        [
            ({"source": "weka something"}, {}, False),
            ({"source": "Mooncake"}, {}, True),
            ({"source": "Mooncake", "hash_id_scope": "local"}, {}, False),
            ({"hash_id_scope": "local"}, {"block_ids": "global"}, True),
        ],
    )
    def test_the_scope_of_block_ids(self, load: Any, more: Any, parameters: Any, shared: bool) -> None:
        lines = [line(blocks([[0, 2]], 32), name=name, block_size=16, **more) for name in "vw"]
        one, other = (prompts[0] for prompts in numbers(load(*lines, **parameters)))
        assert (one == other) is shared

    @given(
        st.lists(
            st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=4), min_size=1, max_size=8
        ),
        st.data(),
    )
    def test_cutting_shares_exactly_what_the_blocks_share(self, prompts: Any, data: Any) -> None:
        """Against every position of every prompt, in blocks of 4 of which the last may be partly filled."""
        lengths = [4 * sum(count for _, count in runs) - data.draw(st.integers(0, 3)) for runs in prompts]
        cutter = Cutter("s")
        found = [intervals(runs, 4, length)[0] for runs, length in zip(prompts, lengths, strict=True)]
        for each in found:
            cutter.learn(each)
        expected, got = [], []
        for runs, length, each in zip(prompts, lengths, found, strict=True):
            positions = [4 * (first + block) + place for first, n in runs for block in range(n) for place in range(4)]
            expected.append(positions[:length])
            segments = [segment for interval in each for segment in cutter.cut(interval)]
            got.append([(segment.id, place) for segment in segments for place in range(segment.tokens)])
        for one_expected, one in zip(expected, got, strict=True):
            assert len(one) == len(one_expected)
            for other_expected, other in zip(expected, got, strict=True):
                assert common(one, other) == common(one_expected, other_expected)


def common(one: list[Any], other: list[Any]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class TestBadInput:
    GOOD = line(step(), name="good")

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("{", "line 2, is not JSON: EOF"),
            ("[]", "line 2: Input should be an object"),
            ({"workflow_id": "w"}, "line 2: calls: Field required"),
            (line(), "line 2: calls: List should have at least 1 item"),
            (line(step(), name=""), "line 2: workflow_id: .*at least 1 character"),
            (line(step(prompt_tokens=-1)), r"line 2: calls\.0\.prompt_tokens: .*\(it is -1\)"),
            (line(step(), step(agent=7)), r"line 2: calls\.1\.agent: .*string \(it is 7\)"),
            (line(step(prompt_segments=[text("s", 0)])), r"prompt_segments\.0\.tokens: .*greater than or equal to 1"),
            (line(step(start_s=3, end_s=2)), r"calls\.0: end_s 2\.0 is before start_s 3\.0"),
            (json.dumps(line(step(start_s=1e999))), r"calls\.0\.start_s"),
            (line(step(prompt_segments=[])), "line 2: calls.0 has neither prompt_segments nor blocks_rle"),
            (line(step(llm=False)), "line 2: no call has a prompt"),
            (line(step(blocks_rle=[[0, 1]]), block_size=16), "calls.0 has both"),
            (line(blocks([[0, 1]], 16)), "calls.0 has blocks_rle, and block_size is missing"),
            (
                line(blocks([[0, 1]], 32), block_size=16, source="weka"),
                "1 blocks of 16 tokens do not make .* 32 tokens",
            ),
            (
                line(blocks([[0, 3]], 32), block_size=16, source="weka"),
                "3 blocks of 16 tokens do not make .* 32 tokens",
            ),
            (line(blocks([[0, 0]], 0), block_size=16), r"blocks_rle\.0\.1"),
            (line(blocks([[0, 1]], 16), block_size=16), "line 2: no telling whether its block ids are local or global"),
            (line(step(prompt_segments=[text("s", 11)])), "segment 's' has 11 tokens here and 10 before"),
            (line(step(), name="good"), "workflow_id 'good' stands in an earlier line, too"),
        ],
    )
    def test_a_bad_line_is_named_or_skipped_and_counted(self, load: Any, bad: Any, says: str) -> None:
        with pytest.raises(WorkloadError, match=says):
            load(self.GOOD, bad)
        with pytest.raises(WorkloadError, match=r"trace\.jsonl, line 2"):
            load(self.GOOD, bad)
        workload = load(self.GOOD, bad, line(step(), name="also good"), strict=False)
        assert [each.id for each in workload.workflows] == ["good", "also good"]
        assert workload.skipped == 1

    def test_global_blocks_have_one_size(self, load: Any) -> None:
        lines = [
            line(blocks([[0, 1]], size), name=str(size), block_size=size, hash_id_scope="global") for size in (16, 32)
        ]
        with pytest.raises(WorkloadError, match="line 2: block_size is 32 here and 16 before"):
            load(*lines)

    def test_a_file_without_a_workflow(self, load: Any, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match=r"holds no workflow that can be read \(2 lines skipped\)"):
            load("x", "y", strict=False)
        with pytest.raises(WorkloadError, match=r"cannot read the trace .*none\.jsonl: No such file"):
            make_workload("trace", 0, path=str(tmp_path / "none.jsonl"))
        with pytest.raises(WorkloadError, match="path is None"):
            make_workload("trace", 0, path=None)

    @pytest.mark.parametrize(
        ("parameters", "says"),
        [({"time_scale": -1}, "time_scale is -1"), ({"block_ids": "mine"}, "choose from auto, local, global")],
    )
    def test_bad_parameters(self, load: Any, parameters: dict[str, Any], says: str) -> None:
        with pytest.raises(WorkloadError, match=says):
            load(self.GOOD, **parameters)


# Workflows, calls with a prompt, and 1 - distinct share as an independent study of the same files found it.
REAL = {
    "chatdev": (64, 1269, 0.427),
    "lmcache_magentic": (16, 410, None),
    "lmcache_miniswe": (12, 225, None),
    "taubench_airline": (132, 2512, 0.961),
    "weka_claude_code": (200, 13029, 0.962),
    "mooncake_conversation": (5259, 7936, None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_load_fast_and_whole(name: str) -> None:
    file = SHARED / f"{name}.jsonl"
    if not file.exists():
        pytest.skip("no shared traces here")
    started = time.process_time()
    workload = make_workload("trace", 0, path=str(file))
    figures = workload.statistics()
    assert time.process_time() - started < 10
    workflows, calls, reusable = REAL[name]
    assert (figures.workflows, figures.calls, workload.skipped) == (workflows, calls, 0)
    if reusable is not None:
        assert 1 - figures.distinct_share == pytest.approx(reusable, abs=0.006)
    recorded = [call for each in file.read_text().splitlines() for call in json.loads(each)["calls"]]
    exact = [call["prompt_tokens"] for call in recorded if call.get("blocks_rle")]
    if exact:
        assert [call.prompt_tokens for _, _, call in workload.calls()] == exact
