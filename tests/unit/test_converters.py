"""Logs of other tools become trace files: by the documented rules, with everything that is left out counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.benchmark.workloads import Converted, Tokens, Workload, WorkloadError, convert, format_names, make_workload


def write(file: Path, *records: Any) -> Path:
    file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records))
    return file


@pytest.fixture
def through(tmp_path: Path) -> Any:
    """Converts records and loads what came of them."""

    def through(format: str, *records: Any) -> tuple[Converted, Workload]:
        source = write(tmp_path / "log.jsonl", *records)
        converted = convert(format, source, tmp_path / "out.jsonl")
        workload = make_workload("trace", 0, path=str(tmp_path / "out.jsonl"))
        assert (len(workload.workflows), len(list(workload.calls()))) == (converted.workflows, converted.calls)
        assert not list(tmp_path.glob("*.partial"))
        return converted, workload

    return through


def prompts(workload: Workload) -> list[list[int]]:
    tokens = Tokens(1 << 40)
    return [tokens.prompt_ids(call).tolist() for _, _, call in workload.calls()]


class TestMooncake:
    REQUESTS = (
        {"timestamp": 0, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 500, "input_length": 700, "output_length": 6, "hash_ids": [0, 7]},
        {"timestamp": 3000, "input_length": 2000, "output_length": 7, "hash_ids": [0, 1, 2, 8]},
    )

    def test_each_request_is_a_workflow_at_its_time(self, through: Any) -> None:
        converted, workload = through("mooncake", *self.REQUESTS)
        assert converted == Converted(3, 3, 0)
        assert [workflow.arrival_s for workflow in workload.workflows] == [0, 0.5, 3]
        assert [call.output_tokens for _, _, call in workload.calls()] == [5, 6, 7]
        first, second, third = prompts(workload)
        assert [len(first), len(second), len(third)] == [1600, 700, 2000]
        assert first[:512] == second[:512]
        assert first[512] != second[512]
        assert first[:1536] == third[:1536]
        assert first[1536] != third[1536]

    def test_sessions_are_derived_from_blocks_beyond_the_first_two(self, through: Any) -> None:
        _, workload = through("mooncake-sessions", *self.REQUESTS)
        assert [len(workflow.calls) for workflow in workload.workflows] == [2, 1]
        assert workload.workflows[0].calls[0].pause_s == 3

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("{", "Invalid JSON"),
            ({"timestamp": 0, "input_length": 9, "output_length": 5}, "hash_ids: Field required"),
            ({**REQUESTS[0], "input_length": 1536}, "4 hash_ids do not make 1536 tokens in blocks of 512"),
            ({**REQUESTS[0], "input_length": 0}, "input_length"),
        ],
    )
    def test_bad_lines_are_left_out_and_said(self, through: Any, bad: Any, says: str) -> None:
        converted, _ = through("mooncake", self.REQUESTS[0], "", bad)
        assert (converted.workflows, converted.skipped) == (1, 1)
        assert "line 3: " in converted.problems[0]
        assert says in converted.problems[0]


REQUEST = {"t": 1.0, "type": "s", "in": 130, "out": 4, "hash_ids": [1, 2], "stop": "tool_use", "api_time": 2.0}
SUB = {"t": 5.0, "type": "subagent", "subagent_type": "Explore", "requests": [{**REQUEST, "t": 6.0, "in": 128}]}
LAST = {**REQUEST, "t": 5.5, "in": 200, "hash_ids": [1, 2, 9], "stop": "", "api_time": 20.0}
SESSION = {"id": "one", "block_size": 64, "requests": [REQUEST, SUB, LAST]}


class TestWeka:
    def test_a_session_with_a_sub_agent(self, through: Any) -> None:
        converted, workload = through("weka", SESSION, {**SESSION, "id": "two"})
        assert converted == Converted(2, 6, 0)
        calls = workload.workflows[0].calls
        assert [(call.agent, call.tool, call.pause_s) for call in calls] == [
            ("main", "tool_use", 2.5),
            ("main", None, 0),
            ("sub:Explore", "tool_use", 0),
        ]
        assert [call.prompt_tokens for call in calls] == [130, 200, 128]
        one, other = prompts(workload)[0], prompts(workload)[3]
        assert one[0] != other[0]

    def test_a_folder_and_a_file_over_many_lines(self, tmp_path: Path) -> None:
        folder = tmp_path / "sessions"
        folder.mkdir()
        (folder / "a.json").write_text(json.dumps(SESSION, indent=1))
        (folder / "b.json").write_text("{")
        converted = convert("weka", folder, tmp_path / "out.jsonl")
        assert (converted.workflows, converted.calls, converted.skipped) == (1, 3, 1)
        assert "b.json" in converted.problems[0]
        assert convert("weka", folder / "a.json", tmp_path / "out.jsonl") == Converted(1, 3, 0)

    def test_bad_requests_are_left_out_and_said(self, through: Any) -> None:
        bad = [{**REQUEST, "in": 500}, {**REQUEST, "out": None}, {**REQUEST, "hash_ids": []}]
        broken = {"type": "subagent", "requests": 5}
        converted, workload = through("weka", {**SESSION, "requests": [REQUEST, *bad, broken]}, {"id": "x"})
        assert (converted.calls, converted.skipped) == (1, 5)
        assert "requests.1: 2 blocks of 64 tokens do not make 500 tokens" in converted.problems[0]
        assert len(workload.workflows) == 1


SYSTEM = {"role": "system", "content": "You are a tester. " * 20}


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    """A request by workflow w with an answer of 9 tokens, unless told otherwise."""
    messages = [SYSTEM, *({"role": "user", "content": content} for content in contents)]
    return {"messages": messages, "metadata": {"workflow_id": "w"}, "usage": {"completion_tokens": 9}, **more}


class TestOpenAI:
    def test_messages_are_segments_by_their_content(self, through: Any) -> None:
        tools = [{"type": "function", "function": {"name": "look"}}]
        _, workload = through("openai", chat("a"), chat("a", "b"), chat("a", tools=tools))
        first, second, third = (call.prompt for call in workload.workflows[0].calls)
        assert second[:2] == first
        assert third[1:] == first
        assert first[0].tokens > first[1].tokens

    def test_agents_by_name_or_by_anchor(self, through: Any) -> None:
        named = chat("a", metadata={"workflow_id": "w", "agent": "tester"})
        other = {**chat("a"), "messages": [{"role": "user", "content": "a"}]}
        _, workload = through("openai", named, chat("a"), chat("b"), other)
        names = [call.agent for _, _, call in workload.calls()]
        assert names[0] == "tester"
        assert names[1] == names[2] != names[3]
        assert names[1].startswith("anchor-")

    @pytest.mark.parametrize(
        "record",
        [
            chat("a", metadata={}, session_id="s"),
            chat("a", metadata={}, prompt_cache_key="s"),
            chat("a", metadata={}, user="s"),
            {"request": chat("a", metadata={}), "session_id": "s", "usage": {"completion_tokens": 9}},
            {
                "body": {**chat("a", metadata={}), "user": "s"},
                "response": {"body": {"usage": {"completion_tokens": 9}}},
            },
        ],
    )
    def test_where_the_workflow_is_found(self, through: Any, record: Any) -> None:
        _, workload = through("openai", record)
        assert workload.workflows[0].id == "s"
        assert workload.workflows[0].calls[0].output_tokens == 9

    @pytest.mark.parametrize(
        ("more", "output_tokens"),
        [
            ({"response": {"usage": {"completion_tokens": 7}}, "max_tokens": 50}, 7),
            ({"response": {"choices": [{"message": {"content": "x" * 400}}]}, "max_tokens": 50}, 107),
            ({"max_tokens": 50}, 50),
            ({"max_completion_tokens": 40, "max_tokens": 50}, 40),
        ],
    )
    def test_the_output_is_the_best_that_is_known(self, through: Any, more: Any, output_tokens: int) -> None:
        _, workload = through("openai", chat("a", usage=None, **more))
        assert workload.workflows[0].calls[0].output_tokens == output_tokens

    def test_times_give_order_pauses_and_arrivals(self, through: Any) -> None:
        late = chat("b", time="2026-01-01T00:00:14Z", end_s=1767225616)
        early = chat("a", time="2026-01-01T00:00:10+00:00", duration_s=1.5)
        other = chat("c", timestamp=1767225605, metadata={"workflow_id": "v"})
        _, workload = through("openai", late, early, other)
        assert {workflow.id: workflow.arrival_s for workflow in workload.workflows} == {"w": 5, "v": 0}
        calls = next(workflow.calls for workflow in workload.workflows if workflow.id == "w")
        assert calls[0].pause_s == 2.5

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            ({"messages": []}, "no list of messages"),
            ({"messages": ["hello"]}, "no list of messages"),
            (chat("a", metadata=None), "no workflow id (looked for metadata.workflow_id, session_id"),
            (chat("a", usage=None), "the length of the output is unknown"),
            (chat("a", time="yesterday"), "time is 'yesterday': neither seconds nor an ISO 8601 date"),
            (chat("a", time=None), "time is None"),
            (chat("a", time=5, end_s=4), "it ends (4.0) before it starts (5.0)"),
        ],
    )
    def test_bad_lines_are_left_out_and_said(self, through: Any, bad: Any, says: str) -> None:
        converted, _ = through("openai", chat("a"), bad)
        assert (converted.calls, converted.skipped) == (1, 1)
        assert "line 2: " in converted.problems[0]
        assert says in converted.problems[0]


class TestConvert:
    def test_what_cannot_be_done_is_said_and_leaves_no_file(self, tmp_path: Path) -> None:
        assert format_names() == ["mooncake", "mooncake-sessions", "openai", "weka"]
        target = tmp_path / "out.jsonl"
        with pytest.raises(WorkloadError, match="unknown format 'csv'; choose from mooncake"):
            convert("csv", tmp_path, target)
        with pytest.raises(WorkloadError, match=r"cannot convert .*none\.jsonl: No such file"):
            convert("openai", tmp_path / "none.jsonl", target)
        with pytest.raises(WorkloadError, match="No such file"):
            convert("openai", write(tmp_path / "in.jsonl", chat("a")), tmp_path / "nowhere" / "out.jsonl")
        empty = write(tmp_path / "empty.jsonl", "x", "y")
        for name in format_names():
            with pytest.raises(WorkloadError, match=r"holds nothing in the format .*: 2 left out; the first: .*line 1"):
                convert(name, empty, target)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["empty.jsonl", "in.jsonl"]

    def test_a_failure_keeps_the_old_target(self, tmp_path: Path) -> None:
        target = write(tmp_path / "out.jsonl", "old")
        with pytest.raises(WorkloadError):
            convert("weka", write(tmp_path / "in.jsonl", "x"), target)
        assert target.read_text() == "old"
