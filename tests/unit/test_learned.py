"""The file in which engines keep what they have learned: whole or absent, and never a reason not to start."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from serving.learned import LearnedFile

STATE = {"version": 1, "tiers": {}}


def test_what_is_saved_is_copied_and_the_copy_stays(tmp_path: Path) -> None:
    file = LearnedFile(str(tmp_path / "deep" / "folder"), "org/model:8b")
    file.save(STATE)
    assert file.path.name == "org_model_8b.json"
    copy = file.copy_to(tmp_path)
    file.save(STATE | {"version": 2})
    assert orjson.loads(Path(copy).read_bytes()) == STATE
    assert orjson.loads(file.path.read_bytes())["version"] == 2
    assert [one.name for one in file.path.parent.iterdir()] == [file.path.name], "nothing half-written is left"


def test_there_is_nothing_to_copy_at_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert LearnedFile(str(tmp_path), "model").copy_to(tmp_path) == ""
    assert caplog.text == ""


def test_a_folder_that_cannot_be_used_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    LearnedFile(str(tmp_path / "file"), "model").save(STATE)
    assert "cannot keep what was learned" in caplog.text
    (tmp_path / "model.json").mkdir()
    assert LearnedFile(str(tmp_path), "model").copy_to(tmp_path) == ""
    assert "starting without what was learned" in caplog.text


def test_it_can_be_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECACHE_CACHE_DIR", str(tmp_path))
    LearnedFile("", "model").save(STATE)
    assert LearnedFile("", "model").copy_to(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECACHE_CACHE_DIR", str(tmp_path))
    assert LearnedFile(None, "model").path == tmp_path / "learned" / "model.json"
