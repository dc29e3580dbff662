"""The folder that engines keep KV in: whose is whose, what it may hold, and what goes first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import AppConfig
from serving.engine_args import EngineArgumentError
from serving.sglang_plugin.settings import USE_PRECISION_S
from serving.storage import (
    KEPT_SHARE,
    STALE_S,
    SWEEP_PERIOD_S,
    fingerprint,
    prepare_storage,
    storage_root,
    sweep,
    sweep_in_turn,
)

NOW = 1_000_000.0
PLENTY = 10**15


def model(folder: Path, weights: bytes = bytes(100_000), config: str = "{}") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def page(root: Path, name: str, size: int, used: float, folder: str = "m.0.kv") -> Path:
    path = root / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def names(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


class TestWhoseIsWhose:
    def test_the_same_model_has_the_same_folder_wherever_it_lies(self, tmp_path: Path) -> None:
        here, there = model(tmp_path / "a"), model(tmp_path / "b")
        assert fingerprint(here, {}) == fingerprint(there, {})

    @pytest.mark.parametrize("position", [0, 777, 99_999])
    def test_other_weights_have_another(self, tmp_path: Path, position: int) -> None:
        weights = bytearray(100_000)
        weights[position] = 1
        assert fingerprint(model(tmp_path / "a"), {}) != fingerprint(model(tmp_path / "b", bytes(weights)), {})

    def test_so_has_another_config_of_the_same_weights(self, tmp_path: Path) -> None:
        scaled = model(tmp_path / "b", config='{"rope_scaling": 2}')
        assert fingerprint(model(tmp_path / "a"), {}) != fingerprint(scaled, {})

    @pytest.mark.parametrize(
        "other",
        [{"dtype": "float16"}, {"kv_cache_dtype": "fp8_e5m2"}, {"page_size": 16}, {"hicache_mem_layout": "page_first"}],
    )
    def test_so_has_the_same_model_run_in_another_way(self, tmp_path: Path, other: dict[str, Any]) -> None:
        path = model(tmp_path / "a")
        assert fingerprint(path, {}) != fingerprint(path, other)
        assert fingerprint(path, {}) == fingerprint(path, {"max_running_requests": 8})

    def test_a_hub_id_is_told_by_its_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, revision: f"/cache/abc/{file}")
        first = fingerprint("some/model", {})
        monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, revision: f"/cache/def/{file}")
        assert fingerprint("some/model", {}) != first

    def test_without_a_hub_a_hub_id_is_told_by_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(name: str, file: str, revision: str | None) -> str:
            raise OSError("no network")

        monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
        assert fingerprint("some/model", {}) == fingerprint("some/model", {})
        assert fingerprint("some/model", {}) != fingerprint("other/model", {})


class TestPrepare:
    def test_it_is_made_for_this_user_alone(self, tmp_path: Path) -> None:
        folder = prepare_storage(tmp_path / "deep" / "er", "org/Model 1", model(tmp_path / "a"), {})
        assert folder.parent == tmp_path / "deep" / "er"
        assert folder.name.startswith("org_Model_1.")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert prepare_storage(tmp_path / "deep" / "er", "org/Model 1", str(tmp_path / "a"), {}) == folder
        assert list(folder.iterdir()) == []

    def test_a_folder_that_cannot_be_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EngineArgumentError, match=r"file_storage_path '.*/file' cannot be used.*hicache_storage"):
            prepare_storage(tmp_path / "file", "m", model(tmp_path / "a"), {})

    def test_a_config_without_storage_has_none(self) -> None:
        assert storage_root(AppConfig()) is None

    def test_a_config_with_it_says_where(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/one")
        engine = {
            "enable_hierarchical_cache": True,
            "hicache-storage-backend": "file",
            "file-storage-path": "~/kv",
        }
        assert storage_root(AppConfig.model_validate({"engine": engine})) == Path("/home/one/kv")


class TestSweep:
    def test_below_the_limit_nothing_goes(self, tmp_path: Path) -> None:
        page(tmp_path, "a.bin", 100, NOW)
        assert sweep(tmp_path, 100, PLENTY, NOW).removed == 0
        assert names(tmp_path) == {"a.bin"}

    def test_what_was_used_longest_ago_goes_whichever_models_it_is(self, tmp_path: Path) -> None:
        page(tmp_path, "old.bin", 40, NOW - 9000, "one.0.kv")
        page(tmp_path, "older.bin", 40, NOW - 9900, "two.0.kv")
        page(tmp_path, "new.bin", 40, NOW, "one.0.kv")
        swept = sweep(tmp_path, 100, PLENTY, NOW)
        assert (swept.found, swept.removed) == (120, 40)
        assert names(tmp_path) == {"old.bin", "new.bin"}

    def test_a_prefix_loses_its_end_first(self, tmp_path: Path) -> None:
        begin = NOW // USE_PRECISION_S * USE_PRECISION_S
        for number in range(10):
            page(tmp_path, f"{number}.bin", 10, begin + number)
        sweep(tmp_path, 50, PLENTY, NOW)
        assert names(tmp_path) == {f"{number}.bin" for number in range(4)}

    def test_a_full_file_system_is_a_limit_too(self, tmp_path: Path) -> None:
        page(tmp_path, "old.bin", 50, NOW - 9000)
        page(tmp_path, "new.bin", 50, NOW)
        assert sweep(tmp_path, PLENTY, -20, NOW).removed == 50
        assert names(tmp_path) == {"new.bin"}

    def test_files_of_others_stay(self, tmp_path: Path) -> None:
        page(tmp_path, "theirs.bin", 500, NOW - 9000, "elsewhere")
        page(tmp_path, "notes.txt", 500, NOW - 9000)
        page(tmp_path, "mine.bin", 500, NOW - 9000)
        sweep(tmp_path, 1, PLENTY, NOW)
        assert names(tmp_path) == {"theirs.bin", "notes.txt"}

    def test_temporary_files_go_when_nobody_can_be_writing_them(self, tmp_path: Path) -> None:
        page(tmp_path, ".dead.tmp", 5, NOW - STALE_S - 1)
        page(tmp_path, ".alive.tmp", 5, NOW - 1)
        sweep(tmp_path, PLENTY, PLENTY, NOW)
        assert names(tmp_path) == {".alive.tmp"}

    @given(
        pages=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100_000)), max_size=12),
        limit=st.integers(1, 300),
        spare=st.integers(-300, 300),
    )
    def test_it_removes_no_more_than_it_must_and_never_a_younger_one_first(
        self, tmp_path_factory: pytest.TempPathFactory, pages: list[tuple[int, int]], limit: int, spare: int
    ) -> None:
        root = tmp_path_factory.mktemp("kv")
        paths = {page(root, f"{i}.bin", size, NOW - age): (size, age) for i, (size, age) in enumerate(pages)}
        total = sum(size for size, _ in paths.values())
        allowed = min(limit, max(0, total + spare))
        swept = sweep(root, limit, spare, NOW)
        left = {path: fact for path, fact in paths.items() if path.exists()}
        gone = {path: fact for path, fact in paths.items() if not path.exists()}
        kept = sum(size for size, _ in left.values())
        assert (swept.found, swept.removed) == (total, total - kept)
        assert kept <= allowed
        if gone:
            assert kept + max(size for size, _ in gone.values()) > int(KEPT_SHARE * allowed)
            youngest_gone = min(age for _, age in gone.values())
            oldest_left = max((age for _, age in left.values()), default=0)
            assert oldest_left <= youngest_gone + USE_PRECISION_S


class TestInTurn:
    def test_one_of_several_engines_sweeps(self, tmp_path: Path) -> None:
        page(tmp_path, "a.bin", 100, time.time() - 9000)
        with filelock.FileLock(tmp_path / "forecache-sweep.lock"):
            assert sweep_in_turn(tmp_path, 1) is None
        assert names(tmp_path) >= {"a.bin"}
        swept = sweep_in_turn(tmp_path, 1)
        assert swept is not None
        assert swept.removed == 100

    def test_and_the_others_leave_it_at_that(self, tmp_path: Path) -> None:
        assert sweep_in_turn(tmp_path, 1) is not None
        page(tmp_path, "a.bin", 100, time.time() - 9000)
        assert sweep_in_turn(tmp_path, 1) is None
        done = tmp_path / "forecache-sweep.lock.done"
        os.utime(done, (time.time() - SWEEP_PERIOD_S,) * 2)
        assert sweep_in_turn(tmp_path, 1) is not None
        assert "a.bin" not in names(tmp_path)
