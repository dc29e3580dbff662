"""`forecache bench text-signal`: what it measures where the text decides and where it says nothing, and its output."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from predictor_actor.model import ModelConfig
from predictor_actor.train import TrainConfig
from serving.benchmark import text_signal
from serving.benchmark.engine_process import EngineProcessError
from serving.benchmark.hidden_states import Prompt, States
from serving.benchmark.text_signal import measure, workflow_sets
from serving.benchmark.text_workflows import NEEDS, VERDICTS
from serving.cli import app

runner = CliRunner()
SMALL = TrainConfig(ModelConfig(width=16, hidden=32), few_calls=0, epochs=25, batch=32)
CHOICES = (*NEEDS.values(), *VERDICTS.values())

Read = Callable[[Sequence[Prompt], int, text_signal.Progress], States]


def deciding(prompts: Sequence[Prompt], limit: int, progress: text_signal.Progress) -> States:
    """A coordinate for what each prompt asks for, under noise."""
    said = [
        [any(sentence.split("{")[0] in prompt[-1][1] for sentence in sentences) for sentences in CHOICES]
        for prompt in prompts
    ]
    return (4 * np.array(said) + np.random.default_rng(0).normal(size=(len(prompts), len(CHOICES)))).astype(np.float16)


def saying_nothing(prompts: Sequence[Prompt], limit: int, progress: text_signal.Progress) -> States:
    return np.random.default_rng(0).normal(size=(len(prompts), len(CHOICES))).astype(np.float16)


def failing(prompts: Sequence[Prompt], limit: int, progress: text_signal.Progress) -> States:
    raise EngineProcessError("the benchmark's engine failed: no memory")


def interrupted(prompts: Sequence[Prompt], limit: int, progress: text_signal.Progress) -> States:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("read", "least", "most"), [(deciding, 0.25, 0.45), (saying_nothing, -0.15, 0.1)])
def test_the_gain_is_what_the_states_say_of_the_branches(
    monkeypatch: pytest.MonkeyPatch, read: Read, least: float, most: float
) -> None:
    monkeypatch.setattr(text_signal, "_read", read)
    [figures] = measure(workflow_sets(120, None)[0], 64, 1, None, lambda share, text: None, SMALL).values()
    [gain, *_] = figures["gains"]["without text"]
    assert least < gain[0] < most
    assert {"markov-1", "markov-2", "graphsage", "without text"} <= set(figures["predictors"])


def test_the_states_of_a_workflow_are_those_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        text_signal, "_read", lambda prompts, limit, progress: np.arange(len(prompts), dtype=np.float16)[:, None]
    )
    [generated] = workflow_sets(5, None)
    states = text_signal.read_states(generated.workflows, 64, None, lambda share, text: None)
    assert [len(each) for each in states] == [len(workflow.calls) for workflow in generated.workflows]
    assert np.concatenate(states)[:, 0].tolist() == list(range(sum(map(len, states))))


@pytest.fixture
def tau(tmp_path: Path) -> Path:
    """Runs of tau-bench of two or three turns."""
    rng = random.Random(0)
    runs = []
    for number in range(10):
        turns: list[dict[str, Any]] = [{"role": "system", "content": "policy"}]
        for _ in range(rng.randrange(2, 4)):
            turns += [{"role": "user", "content": "and then?"}, {"role": "assistant", "content": "so"}]
        runs.append({"workflow_id": str(number), "messages": turns})
    (tmp_path / "air_messages.jsonl").write_text("".join(f"{json.dumps(run)}\n" for run in runs))
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine, and training that is over soon."""
    monkeypatch.setattr(text_signal, "_read", deciding)
    monkeypatch.setattr(text_signal, "TrainConfig", lambda: TrainConfig(ModelConfig(8, 8), epochs=1, few_calls=0))


@pytest.mark.usefixtures("quick")
class TestCommand:
    options = ("bench", "text-signal", "--workflows", "8", "--seeds", "1")

    def test_for_machines_it_prints_one_object_with_a_study_for_each_set_and_label(self, tau: Path) -> None:
        done = runner.invoke(app, [*self.options, "--json", "--tau", str(tau)])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert list(found) == ["generated, by agent", "tau-bench, by agent", "tau-bench, by agent+tool"]
        assert [figures["workflows"] for figures in found.values()] == [8, 10, 10]
        assert all(len(figures["gains"]["without text"]) == 3 for figures in found.values())

    def test_for_people_it_prints_tables_and_the_gain(self) -> None:
        done = runner.invoke(app, list(self.options))
        assert done.exit_code == 0, done.output
        assert "without text" in done.stdout
        assert "markov-2" in done.stdout
        assert "8 workflows" in done.stdout

    def test_a_folder_without_runs_is_skipped_and_told(self, tmp_path: Path) -> None:
        done = runner.invoke(app, [*self.options, "--json", "--tau", str(tmp_path / "nowhere")])
        assert done.exit_code == 0, done.output
        assert list(json.loads(done.stdout)) == ["generated, by agent"]
        assert "nowhere has no file" in done.stderr

    def test_a_damaged_run_is_an_error_before_anything_is_read(self, tau: Path) -> None:
        (tau / "air_messages.jsonl").write_text("{}\n")
        done = runner.invoke(app, [*self.options, "--tau", str(tau)])
        assert done.exit_code == 2
        assert "air_messages.jsonl:1" in done.stderr

    @pytest.mark.parametrize(("read", "code"), [(failing, 2), (interrupted, 130)])
    def test_an_engine_that_fails_and_ctrl_c_have_their_exit_codes(
        self, monkeypatch: pytest.MonkeyPatch, read: Read, code: int
    ) -> None:
        monkeypatch.setattr(text_signal, "_read", read)
        done = runner.invoke(app, list(self.options))
        assert done.exit_code == code
        assert ("no memory" in done.stderr) == (code == 2)
        assert "Traceback" not in done.output

    def test_states_are_kept_so_that_the_next_run_reads_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        kept = ["--states", str(tmp_path / "states")]
        assert runner.invoke(app, [*self.options, *kept]).exit_code == 0
        monkeypatch.setattr(text_signal, "_read", failing)
        assert runner.invoke(app, [*self.options, *kept]).exit_code == 0
        assert runner.invoke(app, [*self.options, *kept, "--tokens", "64"]).exit_code == 2

    def test_a_folder_that_cannot_be_written_is_an_error_with_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        done = runner.invoke(app, [*self.options, "--states", str(tmp_path / "file" / "states")])
        assert done.exit_code == 2
        assert "file" in done.stderr
