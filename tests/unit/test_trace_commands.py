"""`forecache traces`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from predictor_actor.base import Call, WorkflowTrace
from predictor_actor.traces import TraceWriter, read_traces
from serving.cli import app

GOOD = [json.dumps({"workflow_id": f"w{number}", "calls": [{"agent": "a"}, {"agent": "[b]"}]}) for number in range(3)]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["traces", *map(str, words)])


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "my run.jsonl"
    path.write_text("\n".join([*GOOD, "{", ""]))
    return path


class TestImport:
    def test_what_is_imported_can_be_read_and_shown(self, record: Path, tmp_path: Path) -> None:
        done = run("import", record, tmp_path / "traces")
        assert done.exit_code == 0
        assert "3 workflows, 6 calls; left out: 1" in done.stdout
        assert "my run.jsonl, line 4: it is not JSON" in done.stderr
        assert [path.name for path in (tmp_path / "traces").iterdir()] == ["my_run-000001.msgpack"]
        assert len(read_traces([tmp_path / "traces"]).traces) == 3

        shown = run("show", tmp_path / "traces")
        assert shown.exit_code == 0
        assert "3 workflows (3 final), 6 calls" in shown.stdout
        assert "[b]" in shown.stdout
        assert "bad records: 0" in shown.stdout

    def test_json_is_one_object(self, record: Path, tmp_path: Path) -> None:
        done = run("import", record, tmp_path / "traces", "--json")
        found = json.loads(done.stdout)
        assert (found["workflows"], found["calls"], found["bad"], len(found["problems"])) == (3, 6, 1, 1)

    def test_the_same_is_not_imported_twice(self, record: Path, tmp_path: Path) -> None:
        run("import", record, tmp_path / "traces")
        again = run("import", record, tmp_path / "traces")
        assert again.exit_code == 2
        assert "delete its my_run-*.msgpack" in again.stderr
        assert len(read_traces([tmp_path / "traces"]).traces) == 3

    def test_a_source_without_a_workflow_is_an_error_that_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text("{}\n")
        done = run("import", tmp_path / "x.jsonl", tmp_path / "traces", "--format", "jsonl")
        assert done.exit_code == 2
        assert "line 1: it is no workflow" in done.stderr
        assert not (tmp_path / "traces").exists()

    @pytest.mark.parametrize("words", [("absent", "traces"), ("my run.jsonl", "my run.jsonl")])
    def test_what_cannot_be_read_or_written_is_an_error(
        self, record: Path, tmp_path: Path, words: tuple[str, str]
    ) -> None:
        done = run("import", *[tmp_path / word for word in words])
        assert done.exit_code == 2
        assert done.stderr.startswith("error: cannot ")


class TestShow:
    def test_endings_and_damage_are_counted(self, tmp_path: Path) -> None:
        with TraceWriter(tmp_path, "t") as writer:
            writer.write(WorkflowTrace("v", (Call("a"),), "open"))
            writer.write(WorkflowTrace("w", (Call("a"), Call("b")), "idle"))
        with (tmp_path / "t-000001.msgpack").open("ab") as file:
            file.write(b"garbage")
        found = json.loads(run("show", tmp_path, "--json").stdout)
        assert found.pop("problems")[0].endswith("7 bytes are damaged")
        assert found == {
            "workflows": 2,
            "calls": 3,
            "agents": {"a": 2, "b": 1},
            "endings": {"open": 1, "idle": 1},
            "unfinished": 0,
            "bad": 1,
        }

    def test_many_agents_are_cut_short(self, tmp_path: Path) -> None:
        with TraceWriter(tmp_path, "t") as writer:
            writer.write(WorkflowTrace("w", tuple(Call(f"agent {number}") for number in range(50))))
        assert "and 10 agents more" in run("show", tmp_path).stdout

    def test_a_missing_folder_is_an_error(self, tmp_path: Path) -> None:
        done = run("show", tmp_path / "absent")
        assert done.exit_code == 2
        assert "cannot read the traces in" in done.stderr
