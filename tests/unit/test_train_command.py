"""`forecache train`: from trace files to a checkpoint, a table and a page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from predictor_workflows import retry_loops, trace_of
from typer.testing import CliRunner

from predictor_actor.base import prefixes_of
from predictor_actor.checkpoint import load_checkpoint
from predictor_actor.traces import TraceWriter
from predictor_actor.train import TrainConfig
from serving.benchmark.predictor_study import ABLATIONS, MODEL, Study, StudyError, run_study, split
from serving.cli import app

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with TraceWriter(tmp_path / "traces", "made") as writer:
        for trace in retry_loops(16):
            assert writer.write(trace)
    return tmp_path / "traces"


class TestCommand:
    def test_it_writes_a_checkpoint_and_a_page_and_prints_its_figures(self, folder: Path, tmp_path: Path) -> None:
        out, page = tmp_path / "model", tmp_path / "pages" / "study.html"
        options = ["--epochs", "2", "--out", str(out), "--report", str(page), "--json"]
        done = runner.invoke(app, ["train", str(folder), *options])
        assert done.exit_code == 0, done.output
        figures = json.loads(done.stdout)
        assert (figures["workflows"], figures["left_out"]) == (16, 0)
        assert set(figures["predictors"]) >= {MODEL, "uniform", "transition", "markov-1", "markov-2", "oracle"}
        assert figures["predictors"]["oracle"]["top1"] == [1, 1, 1]
        assert load_checkpoint(out).forecast(prefixes_of(retry_loops(1)[0])).steps.shape[1] == 3
        text = page.read_text()
        assert text.count("<svg") == 2
        assert "http" not in text.replace("http-equiv", "")

    def test_without_json_it_prints_a_table(self, folder: Path) -> None:
        done = runner.invoke(app, ["train", str(folder), "--epochs", "1"])
        assert done.exit_code == 0, done.output
        assert "graphsage" in done.stdout
        assert "16 workflows" in done.stdout

    def test_what_cannot_be_read_is_an_error_with_its_path(self, tmp_path: Path) -> None:
        done = runner.invoke(app, ["train", str(tmp_path / "nowhere")])
        assert done.exit_code == 2
        assert "nowhere" in done.stderr

    def test_too_few_workflows_are_an_error(self, tmp_path: Path) -> None:
        with TraceWriter(tmp_path, "few") as writer:
            writer.write(trace_of(["a", "b"]))
        done = runner.invoke(app, ["train", str(tmp_path)])
        assert done.exit_code == 2
        assert "1 workflows have calls; give at least 4" in done.stderr

    def test_bad_traces_are_left_out_and_counted(self, folder: Path) -> None:
        [file] = folder.glob("*.msgpack")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(bytes(data))
        done = runner.invoke(app, ["train", str(folder), "--epochs", "1", "--json"])
        assert done.exit_code == 0, done.output
        figures = json.loads(done.stdout)
        assert (figures["workflows"], figures["left_out"]) == (15, 1)


class TestStudy:
    def test_workflows_are_tested_whole_and_not_learned_from(self) -> None:
        traces = retry_loops(20)
        for how in ("workflow", "time"):
            learning, test = split(traces, how, 0.25, seed=3)  # type: ignore[arg-type]
            assert len(test) == 5
            assert {trace.workflow for trace in learning} | {trace.workflow for trace in test} == {
                trace.workflow for trace in traces
            }
            assert len(learning) == 15

    def test_by_time_the_latest_are_tested(self) -> None:
        traces = [trace_of(["a"], str(number)) for number in range(8)]
        traces = [dataclasses.replace(trace, started_at=float(-number)) for number, trace in enumerate(traces)]
        _, test = split(traces, "time", 0.25, seed=0)
        assert {trace.workflow for trace in test} == {"0", "1"}

    def test_each_ablation_has_its_row(self) -> None:
        figures = run_study(retry_loops(8), Study(ablations=ABLATIONS, config=TrainConfig(epochs=1)))
        rows = {"without graph", "without path", "without prior", "r-gcn"}
        assert rows <= set(figures["predictors"])
        assert set(figures["gains"]) == rows
        assert figures["parameters"] > 250_000

    def test_an_ablation_that_there_is_not_is_refused(self) -> None:
        with pytest.raises(ValueError, match="unknown ablation 'smell'"):
            Study(ablations=("smell",))

    def test_three_workflows_are_too_few(self) -> None:
        with pytest.raises(StudyError, match="give at least 4"):
            run_study(retry_loops(3), Study())
