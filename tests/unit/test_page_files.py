"""The file backend: pages come back as they were, and nothing that happens to a file is an error."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from serving.sglang_plugin import file_storage
from serving.sglang_plugin.file_storage import PAUSE_S, PageFiles
from serving.sglang_plugin.settings import USE_PRECISION_S

KEYS = ["k0", "k1", "k2"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(file_storage.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def files(tmp_path: Path) -> PageFiles:
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="m",
        extra_config={"file_storage_path": str(tmp_path / "kv")},
    )
    return PageFiles(config)


def a_page(number: float) -> torch.Tensor:
    return torch.full((8,), number, dtype=torch.float32)


def store(files: PageFiles) -> None:
    assert files.batch_set(KEYS, [a_page(number) for number in range(3)])


def read(files: PageFiles) -> list[float | None]:
    pages = files.batch_get(KEYS, [torch.zeros(8) for _ in KEYS])
    return [None if page is None else float(page[0]) for page in pages]


def file_of(files: PageFiles, key: str) -> Path:
    (path,) = Path(files.file_path).glob(f"{key}_*.bin")
    return path


class TestReading:
    def test_pages_come_back(self, files: PageFiles) -> None:
        store(files)
        assert read(files) == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("size", [0, 3, 31, 33, 64])
    def test_a_file_of_another_size_is_a_miss_and_goes(self, files: PageFiles, size: int) -> None:
        store(files)
        damaged = file_of(files, "k1")
        damaged.write_bytes(bytes(size))
        assert read(files) == [0.0, None, None]
        assert not damaged.exists()

    def test_what_cannot_be_read_is_a_miss(self, files: PageFiles) -> None:
        store(files)
        damaged = file_of(files, "k0")
        damaged.unlink()
        damaged.mkdir()
        assert read(files) == [None, None, None]

    def test_a_folder_that_is_gone_is_empty(self, files: PageFiles) -> None:
        store(files)
        shutil.rmtree(files.file_path)
        assert read(files) == [None, None, None]
        assert files.batch_exists(KEYS) == 0

    def test_a_page_that_is_read_is_used(self, files: PageFiles) -> None:
        store(files)
        path = file_of(files, "k0")
        long_ago = path.stat().st_mtime - 2 * USE_PRECISION_S
        os.utime(path, (long_ago, long_ago))
        read(files)
        assert path.stat().st_mtime > long_ago + USE_PRECISION_S


class TestWriting:
    def test_a_page_that_is_there_is_used_and_not_written(self, files: PageFiles) -> None:
        store(files)
        path = file_of(files, "k0")
        os.utime(path, (1, 1))
        number = path.stat().st_ino
        store(files)
        assert path.stat().st_ino == number
        assert path.stat().st_mtime > 1

    def test_a_damaged_file_is_replaced(self, files: PageFiles) -> None:
        store(files)
        file_of(files, "k1").write_bytes(b"short")
        store(files)
        assert read(files) == [0.0, 1.0, 2.0]

    def test_a_full_disk_is_left_alone_for_a_while(
        self, files: PageFiles, clock: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = []

        def full(source: str, target: str) -> None:
            tried.append(target)
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr("sglang.srt.mem_cache.hicache_storage.os.replace", full)
            assert not files.batch_set(KEYS, [a_page(0)] * 3)
            assert not files.batch_set(KEYS, [a_page(0)] * 3)
        assert len(tried) == 1
        assert list(Path(files.file_path).iterdir()) == []
        clock[0] += PAUSE_S
        store(files)

    def test_a_folder_that_is_gone_is_made_again(self, files: PageFiles, clock: list[float]) -> None:
        shutil.rmtree(files.file_path)
        assert not files.set("k0", a_page(0))
        clock[0] += PAUSE_S
        store(files)
        assert read(files) == [0.0, 1.0, 2.0]
