"""Recorded workflows, one a line: what a forecast needs is taken, faulty lines cost only themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor_actor.base import AgentFacts, Call, WorkflowTrace
from predictor_actor.trace_import import MAX_ANCHOR_SEGMENTS, JsonlImport, Label, stable_hash
from predictor_actor.trace_record import RecordError
from predictor_actor.traces import ReadResult, read_traces

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"


def step(agent: str = "a", *segments: str, **more: Any) -> dict[str, Any]:
    return {"agent": agent, "prompt_segments": [{"id": one, "tokens": 10} for one in segments], **more}


def line(name: str, *calls: Any, **more: Any) -> str:
    return json.dumps({"workflow_id": name, "calls": list(calls), **more})


def read(folder: Path, *lines: str, label: Label = "agent") -> ReadResult:
    path = folder / "x.jsonl"
    path.write_text("\n".join(lines))
    return read_traces([path], label)


def anchors(result: ReadResult) -> dict[str, AgentFacts]:
    return {name: facts for trace in result.traces for name, facts in trace.agents.items()}


class TestLines:
    def test_fields_are_taken_as_they_are(self, tmp_path: Path) -> None:
        full = step("a", prompt_tokens=7, output_tokens=3, start_s=0, end_s=1.5, tool="look", phase="p", llm=True)
        bare = {"agent": "b"}
        empty = {"agent": "c", "prompt_segments": None, "prompt_tokens": None, "output_tokens": None, "tool": ""}
        result = read(tmp_path, line("w", full, bare, empty, source="s", block_size=64))
        calls = Call("a", 7, 3, 0.0, 1.5, "look"), Call("b"), Call("c")
        assert result == ReadResult([WorkflowTrace("w", calls, "final", 0.0, {}, "s")])

    def test_times_are_counted_from_the_first_call_of_the_workflow(self, tmp_path: Path) -> None:
        trace = read(tmp_path, line("w", step(), step(start_s=50, end_s=51), step(start_s=52.5))).traces[0]
        assert trace.started_at == 50
        assert [(call.start_s, call.end_s) for call in trace.calls] == [(None, None), (0, 1), (2.5, None)]

    def test_a_step_without_a_model_call_is_none(self, tmp_path: Path) -> None:
        trace = read(tmp_path, line("w", step("a"), step("shell", llm=False), step("b"))).traces[0]
        assert [call.agent for call in trace.calls] == ["a", "b"]

    @pytest.mark.parametrize(
        ("label", "names"),
        [
            ("agent", ["Programmer", "assistant", "bare"]),
            ("agent+phase", ["Programmer@Coding", "assistant", "bare"]),
            ("agent+tool", ["Programmer", "assistant:respond", "bare"]),
        ],
    )
    def test_the_label_names_the_callers(self, tmp_path: Path, label: Label, names: list[str]) -> None:
        steps = step("Programmer", phase="Coding"), step("assistant", tool="respond"), step("bare", phase=None)
        trace = read(tmp_path, line("w", *steps), label=label).traces[0]
        assert [call.agent for call in trace.calls] == names

    def test_an_unknown_label_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"agent\+phase"):
            JsonlImport("phase")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("{", "not JSON"),
            ("[" * 3000, "not JSON"),
            ("3", "no workflow"),
            ('{"resourceSpans": []}', "forecache traces import"),
            (line("w"), "0 model calls"),
            (line("w", step(llm=False)), "0 model calls"),
            (line("", step()), "workflow is a name"),
            (line("w", "step"), "a call is an object"),
            (line("w", {}), "agent is a name"),
            (line("w", step(7)), "agent is a name"),  # type: ignore[arg-type]
            (line("w", step(prompt_tokens=-1)), "prompt_tokens"),
            (line("w", step(output_tokens="many")), "output_tokens"),
            (line("w", step(start_s=2, end_s=1)), "before start_s"),
            ('{"workflow_id": "w", "calls": [{"agent": "a", "start_s": 1e999}]}', "not JSON"),
            (line("w", step(tool=["x"])), "tool is a name"),
            (line("w", step() | {"prompt_segments": {}}), "prompt_segments is a list"),
            (line("w", step() | {"prompt_segments": ["x"]}), "a segment has"),
            (line("w", step() | {"prompt_segments": [{"id": "x", "tokens": -1}]}), "a segment has 0"),
            (line("w", *[step()] * 20_001), "20001 model calls"),
            (line("w", step(), source=[1]), "source is a text"),
        ],
    )
    def test_a_bad_line_is_skipped_with_its_number_and_reason(self, tmp_path: Path, bad: str, says: str) -> None:
        result = read(tmp_path, line("v", step()), "", bad, line("x", step()))
        assert [trace.workflow for trace in result.traces] == ["v", "x"]
        assert result.bad == 1
        assert result.problems[0].place == "line 3"
        assert says in result.problems[0].reason

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["workflow_id", "calls", "agent", "prompt_segments", "id", "tokens", "start_s", "llm"]
                    ),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=20,
        )
        | st.binary(max_size=50)
    )
    def test_no_line_makes_it_fail(self, found: Any) -> None:
        imported = JsonlImport()
        try:
            imported.add(found if isinstance(found, bytes) else json.dumps(found).encode("utf-8", "surrogatepass"))
        except RecordError:
            assert imported.traces() == []


class TestAnchors:
    def test_it_is_what_prompts_of_several_workflows_begin_with(self, tmp_path: Path) -> None:
        result = read(
            tmp_path,
            line("v", step("a", "sys", "tools", "task-v"), step("a", "sys", "tools", "task-v", "more")),
            line("w", step("a", "sys", "tools", "task-w"), step("b", "sys-b", "task-w")),
        )
        assert anchors(result) == {"a": AgentFacts(20, (stable_hash("sys"), stable_hash("tools")))}
        assert [set(trace.agents) for trace in result.traces] == [{"a"}, {"a"}]

    def test_a_minority_that_begins_otherwise_does_not_take_it_away(self, tmp_path: Path) -> None:
        lines = [line(f"w{number}", step("a", "sys", f"task{number}")) for number in range(3)]
        result = read(tmp_path, *lines, line("x", step("a", "other", "sys")))
        assert anchors(result)["a"].anchor_hashes == (stable_hash("sys"),)

    def test_an_agent_of_one_workflow_has_what_others_share_with_it(self, tmp_path: Path) -> None:
        result = read(tmp_path, line("v", step("a", "company", "role-a")), line("w", step("b", "company", "role-b")))
        assert anchors(result) == dict.fromkeys("ab", AgentFacts(10, (stable_hash("company"),)))

    def test_it_is_bounded(self, tmp_path: Path) -> None:
        pieces = [f"s{number}" for number in range(100)]
        result = read(tmp_path, line("v", step("a", *pieces)), line("w", step("a", *pieces)))
        assert len(anchors(result)["a"].anchor_hashes) == MAX_ANCHOR_SEGMENTS

    def test_hashes_are_the_same_in_every_process(self) -> None:
        code = "from predictor_actor.trace_import import stable_hash; print(stable_hash('sys'))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert int(done.stdout) == stable_hash("sys") < 1 << 64


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded workflows are not here")
class TestRecordedWorkflows:
    @pytest.mark.parametrize("name", ["chatdev", "lmcache_magentic", "lmcache_miniswe", "taubench_airline"])
    def test_all_are_read(self, name: str) -> None:
        path = SHARED / f"{name}.jsonl"
        result = read_traces([path])
        recorded = [json.loads(one) for one in path.read_text().splitlines()]
        assert result.bad == 0
        assert [len(trace.calls) for trace in result.traces] == [len(one["calls"]) for one in recorded]

    def test_roles_of_chatdev_have_anchors(self) -> None:
        facts = anchors(read_traces([SHARED / "chatdev.jsonl"], "agent+phase"))
        assert facts["Programmer@Coding"].anchor_tokens > 100
        assert facts["Programmer@Coding"].anchor_hashes[0] == facts["Code Reviewer@CodeReviewComment"].anchor_hashes[0]
