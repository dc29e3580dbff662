"""What a replica keeps for the next one, and the training it starts: what fails is told and harms nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from predictor_workflows import retry_loops, trace_of

from predictor_actor.graphsage import GraphSage
from predictor_actor.kept import Kept
from predictor_actor.model import ModelConfig
from predictor_actor.retrain import text_size
from predictor_actor.train import TrainConfig, train
from predictor_actor.training_process import TrainingFailedError, TrainingProcess
from serving.app import predictor_deployment
from serving.config import AppConfig


@pytest.fixture(scope="module")
def model() -> GraphSage:
    return train(retry_loops(4), TrainConfig(ModelConfig(8, 8), epochs=1)).predictor


class TestKept:
    def test_the_next_replica_has_the_latest_workflows_oldest_first(self, tmp_path: Path) -> None:
        traces = retry_loops(6)
        for part in (traces[:3], traces[3:]):
            kept = Kept(tmp_path)
            kept.write(part)
            kept.close()
        assert Kept(tmp_path).recent(4) == traces[2:]

    def test_the_next_replica_has_the_model_that_served_and_none_that_lost_its_place(
        self, tmp_path: Path, model: GraphSage
    ) -> None:
        Kept(tmp_path).save(model)
        loaded = Kept(tmp_path).load()
        assert loaded is not None
        assert loaded.version == model.version
        Kept(tmp_path).save(None)
        assert Kept(tmp_path).load() is None

    def test_without_a_folder_nothing_is_kept(self, model: GraphSage) -> None:
        kept = Kept(None)
        kept.write(retry_loops(1))
        kept.save(model)
        assert kept.recent(5) == []
        assert kept.load() is None

    def test_what_cannot_be_written_or_read_is_told_once_and_raises_nothing(
        self, tmp_path: Path, model: GraphSage, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("no folder")
        kept = Kept(tmp_path / "file")
        kept.write(retry_loops(1))
        kept.write(retry_loops(1))
        assert caplog.text.count("cannot keep workflows") == 1
        kept.save(model)
        assert "cannot keep the predictor" in caplog.text
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "model.json").write_text("{}")
        assert Kept(tmp_path).load() is None
        assert "starting without the predictor" in caplog.text


class TestTraining:
    def test_one_that_fails_says_why(self) -> None:
        with pytest.raises(TrainingFailedError, match="1 workflows have calls"):
            TrainingProcess(10, 1).train(retry_loops(1))

    def test_none_begins_once_the_replica_stops(self) -> None:
        training = TrainingProcess(10, 1)
        training.kill()
        with pytest.raises(TrainingFailedError, match="stops"):
            training.train(retry_loops(2))

    def test_it_uses_the_hidden_states_that_most_calls_have(self) -> None:
        with_text = trace_of(["a"] * 3, hidden=b"12" * 8)
        assert text_size([with_text, trace_of(["a"])]) == 8
        assert text_size([with_text, trace_of(["a"] * 4)]) == 0
        assert text_size([]) == 0


class TestDeployment:
    def test_there_is_none_unless_it_is_enabled(self) -> None:
        assert predictor_deployment(AppConfig.model_validate({"predictor": {"enabled": False}})) is None
        assert predictor_deployment(AppConfig()) is not None
