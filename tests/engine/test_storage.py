"""Two real engines with one storage folder: a workflow that moves is not computed again, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_under_test import CONFIG, run_engine
from storage_jobs import CONTEXT, HARMS, NEXT, PAGE_TOKENS, STORED_TOKENS

from serving.config import AppConfig
from serving.engine_args import EngineArgumentError
from serving.run_directory import RunDirectory

STORING: dict[str, Any] = {
    "page_size": PAGE_TOKENS,
    "hicache_storage_backend": "file",
    "hicache_storage_backend_extra_config": '{"prefetch_threshold": 64}',
}


def storing(folder: Path) -> AppConfig:
    return CONFIG.model_copy(update={"engine": CONFIG.engine | STORING | {"file_storage_path": str(folder)}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the first engine and, when it is gone, the second have seen."""
    config = storing(tmp_path_factory.mktemp("storage"))
    return {job: run_engine(config, f"{job} storage") for job in ("keep in", "load from")}


@pytest.fixture(scope="module")
def loaded(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return runs["load from"]


class TestAWorkflowThatMoves:
    def test_the_first_engine_computes_its_context(self, runs: dict[str, dict[str, Any]]) -> None:
        assert runs["keep in"]["call"]["cached_tokens"] == 0

    def test_the_second_loads_it_and_computes_the_rest(self, loaded: dict[str, Any]) -> None:
        call = loaded["loaded"]
        assert (call["device"], call["host"], call["storage"]) == (0, 0, STORED_TOKENS)

    def test_it_answers_as_one_that_has_computed_everything(self, loaded: dict[str, Any]) -> None:
        computed, _ = loaded["removed"]
        assert computed["cached_tokens"] == 0
        assert loaded["loaded"]["text"] == computed["text"]

    def test_the_next_call_finds_it_on_the_device(self, loaded: dict[str, Any]) -> None:
        call = loaded["again"]
        assert call["device"] == len(NEXT) // PAGE_TOKENS * PAGE_TOKENS - PAGE_TOKENS * (len(NEXT) % PAGE_TOKENS == 0)
        assert call["storage"] == 0

    def test_what_was_loaded_is_the_workflows(self, loaded: dict[str, Any]) -> None:
        assert sum(node["tokens"] for node in loaded["nodes"]) >= len(CONTEXT)
        assert all(node["owners"] == {"moving": ["a"]} for node in loaded["nodes"])

    def test_it_counts_as_neither_computed_nor_kept(self, loaded: dict[str, Any]) -> None:
        counters = loaded["counters"]
        assert counters["hit_storage"] == STORED_TOKENS
        assert counters["computed"] == len(NEXT) - STORED_TOKENS
        assert counters["hit_device"] == counters["hit_host"] == counters.get("regret", 0) == 0

    def test_the_books_are_right_after_it(self, loaded: dict[str, Any]) -> None:
        assert loaded["check"] == {"consistent": True}


@pytest.mark.parametrize("harm", HARMS)
class TestBrokenStorage:
    def test_calls_are_answered_as_without_it(self, loaded: dict[str, Any], harm: str) -> None:
        computed, again = loaded[harm]
        assert computed["storage" if "storage" in computed else "cached_tokens"] == 0
        assert computed["text"] == again["text"] == loaded["loaded"]["text"]


class TestStorageThatCannotWork:
    """It is an error before anything is started."""

    @staticmethod
    def error_of_start(folder: Path, run_directory: Path) -> str:
        from serving.sglang_engine import start_engine

        with pytest.raises(EngineArgumentError) as caught:
            start_engine(storing(folder), "test", "", "", RunDirectory(run_directory))
        return str(caught.value)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "file_storage_path" in self.error_of_start(tmp_path / "file" / "kv", tmp_path)

    def test_a_machine_that_cannot_build_the_names_of_pages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_compiler(*args: Any) -> None:
            raise RuntimeError("Failed to load HiCache native hash extension") from OSError("no c++")

        monkeypatch.setattr("serving.sglang_engine.get_native_hash", no_compiler)
        error = self.error_of_start(tmp_path / "kv", tmp_path)
        assert "C++ compiler" in error
        assert "no c++" in error
