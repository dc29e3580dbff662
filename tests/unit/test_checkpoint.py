"""Checkpoints: what is saved is what is loaded, and what cannot be used is refused with the reason."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from predictor_workflows import retry_loops

from predictor_actor.base import prefixes_of
from predictor_actor.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from predictor_actor.graphsage import GraphSage
from predictor_actor.model import ModelConfig
from predictor_actor.train import TrainConfig, train

PREFIXES = [prefix for trace in retry_loops(3, seed=4) for prefix in prefixes_of(trace)]


@pytest.fixture(scope="module")
def trained() -> GraphSage:
    return train(retry_loops(12), TrainConfig(model=ModelConfig(8, 16, text_size=4), epochs=2)).predictor


@pytest.fixture
def folder(trained: GraphSage, tmp_path: Path) -> Path:
    save_checkpoint(trained, tmp_path, {"top1": 0.5})
    return tmp_path


def change(folder: Path, **fields: object) -> None:
    said = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(said | fields))


def test_what_is_loaded_forecasts_as_what_was_saved(trained: GraphSage, folder: Path) -> None:
    loaded = load_checkpoint(folder)
    assert np.array_equal(loaded.forecast(PREFIXES).steps, trained.forecast(PREFIXES).steps)
    assert loaded.forecast(PREFIXES).agents == trained.forecast(PREFIXES).agents


def test_it_goes_on_learning_where_it_was(trained: GraphSage, folder: Path) -> None:
    one, other = load_checkpoint(folder), load_checkpoint(folder)
    before = one.forecast(PREFIXES).steps
    for trace in retry_loops(20, seed=8, coder="tester"):
        one.learn(trace)
    assert not np.array_equal(one.forecast(PREFIXES).steps, before)
    assert np.array_equal(other.forecast(PREFIXES).steps, before)


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(trained: GraphSage, folder: Path) -> None:
    loaded = load_checkpoint(folder)
    loaded.learn(retry_loops(1)[0])
    save_checkpoint(loaded, folder)
    assert len(list(folder.iterdir())) == 2
    assert json.loads((folder / "model.json").read_text())["notes"] == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 99}, "format 99"),
        ({"weights": "../elsewhere"}, "not a plain file name"),
        ({"weights": "missing.safetensors"}, "FileNotFoundError"),
        ({"sha256": "0" * 64}, "not what model.json was written with"),
        ({"config": {"width": 16, "signals": []}}, "RuntimeError"),
        ({"config": {"colour": "red", "signals": []}}, "colour"),
        ({"agents": [{"name": "a", "anchor_tokens": 0, "anchor_hashes": []}]}, "the graph has shapes"),
        ({"order": 77}, "order is 77"),
        ({"calibration": {"temperature": [0, 0, 0], "share": [1, 1, 1]}}, "must be positive"),
        ({"calibration": None}, "TypeError"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(folder: Path, fields: dict[str, object], reason: str) -> None:
    change(folder, **fields)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(folder)


def test_a_missing_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="forecache train"):
        load_checkpoint(tmp_path / "nowhere")


def test_damage_anywhere_is_refused_and_never_loaded(folder: Path) -> None:
    rng = random.Random(0)
    for path in list(folder.iterdir()):
        good = path.read_bytes()
        for _ in range(40):
            place = rng.randrange(len(good))
            path.write_bytes(good[:place])
            with pytest.raises(CheckpointError):
                load_checkpoint(folder)
        path.write_bytes(good)
    assert load_checkpoint(folder)
