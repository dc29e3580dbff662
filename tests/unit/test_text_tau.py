"""Runs of tau-bench as workflows: who called whom with which prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.benchmark.text_tau import ASSISTANT, USER, USER_OPENING, TauError, read_tau

LOOK_UP = {"function": {"name": "get_user", "arguments": '{"id": 7}'}, "id": "c1", "type": "function"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "policy"},
    {"role": "user", "content": "cancel my flight"},
    {"role": "assistant", "content": None, "tool_calls": [LOOK_UP]},
    {"role": "tool", "content": "gold member", "tool_call_id": "c1", "name": "get_user"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "thanks"},
]


def written(folder: Path, *lines: Any) -> Path:
    (folder / "air_messages.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_each_message_of_a_model_is_a_call_whose_prompt_is_what_was_said_before(tmp_path: Path) -> None:
    [run] = read_tau(written(tmp_path, {"workflow_id": "r1", "messages": MESSAGES}))
    assert run.workflow == "r1"
    assert [(call.agent, call.tool) for call in run.calls] == [
        (USER, None), (ASSISTANT, "get_user"), (ASSISTANT, "respond"), (USER, None),
    ]  # fmt: skip
    first, second, third, last = (call.messages for call in run.calls)
    assert first == USER_OPENING
    assert second == (("system", "policy"), ("user", "cancel my flight"))
    assert third == (*second, ("assistant", 'get_user({"id": 7})'), ("tool", "gold member"))
    # The user hears the assistant, not its tools, and its own words are the assistant's of its prompt.
    assert last == (*USER_OPENING, ("assistant", "cancel my flight"), ("user", "done"))
    assert run.calls[1].prompt_tokens == 2 + 4
    assert run.calls[1].output_tokens == 5


def test_a_folder_without_such_files_has_no_runs(tmp_path: Path) -> None:
    assert read_tau(tmp_path) == []
    assert read_tau(tmp_path / "nowhere") == []


@pytest.mark.parametrize("line", [7, {}, {"messages": []}, {"workflow_id": "r", "messages": [{"role": "user"}]}])
def test_a_line_that_is_no_run_is_an_error_with_its_place(tmp_path: Path, line: Any) -> None:
    good = {"workflow_id": "r1", "messages": MESSAGES}
    with pytest.raises(TauError, match=r"air_messages\.jsonl:2: it is no run"):
        read_tau(written(tmp_path, good, line))
