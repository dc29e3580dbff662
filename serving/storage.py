"""The folder in which engines keep KV for one another, beyond their host memory: whose is whose, and how much may stay.

Below `engine.file_storage_path` each model has a folder of its own, by what its KV depends on. SGLang bounds what one
engine remembers to have written; the folder as a whole is bounded here, by whichever engine comes to it first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from serving.config import AppConfig
from serving.engine_args import EngineArgumentError, config_arguments
from serving.models import file_name
from serving.sglang_plugin.settings import USE_PRECISION_S

logger = logging.getLogger("forecache")

SWEEP_PERIOD_S = 30.0
# What a sweep leaves of the limit, so that not every sweep has to remove something.
KEPT_SHARE = 0.9
# Of the file system, in any case.
FREE_SHARE = 0.05
# A temporary file of this age was left by an engine that is gone, in seconds.
STALE_S = 600.0

_SUFFIX = ".kv"
_LOCK = "forecache-sweep.lock"
# Two models of the same shape differ nearly everywhere.
_SAMPLES = 256
_SAMPLE_BYTES = 4096
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
# SGLang's file names tell models and ranks apart by name and number; what else decides on the bytes of a page is here.
_DECISIVE = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "quantization_param_path",
    "torchao_config",
    "json_model_override_args",
    "load_format",
    "revision",
    "page_size",
    "hicache_io_backend",
    "hicache_mem_layout",
    "speculative_algorithm",
    "speculative_draft_model_path",
)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has found and removed, in bytes."""

    found: int
    removed: int


def storage_root(config: AppConfig) -> Path | None:
    """The folder of all models; None without a file backend.

    Raises:
        EngineArgumentError: as `config_arguments`.
    """
    engine = config_arguments(config)
    if engine.get("hicache_storage_backend") != "file":
        return None
    return Path(os.path.expanduser(engine["file_storage_path"]))


def prepare_storage(root: Path, name: str, model_path: str, engine: Mapping[str, Any]) -> Path:
    """The folder of one model, which only this user can read or write: who reads KV can tell prompts from it.

    Args:
        root: of all models.
        name: the model is served under.
        model_path: what `serving.models.prepare_model` returned.
        engine: the arguments that the engine is started with.

    Raises:
        EngineArgumentError: it cannot be made or written.
    """
    folder = root / f"{file_name(name)}.{fingerprint(model_path, engine)}{_SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EngineArgumentError(
            f"engine.file_storage_path {str(root)!r} cannot be used: {error}. Name a folder that every engine can "
            "write, or remove engine.hicache_storage_backend"
        ) from error
    return folder


def fingerprint(model_path: str, engine: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of what a model's KV depends on: its config, samples of its weights, how it is run.

    Of a hub id it is the commit, if the hub or its cache can be asked, and else only the id.
    """
    digest = hashlib.sha256()
    for name in _DECISIVE:
        digest.update(f"{name}={engine.get(name)!r}\n".encode())
    folder = Path(model_path)
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.name == "config.json" or file.suffix in _WEIGHTS:
                digest.update(f"{file.name}: {file.stat().st_size}\n".encode())
                for sample in _samples(file):
                    digest.update(sample)
    else:
        digest.update(f"{model_path}@{_commit(model_path, engine.get('revision'))}".encode())
    return digest.hexdigest()[:16]


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    step = max(_SAMPLE_BYTES, size // _SAMPLES)
    with file.open("rb") as opened:
        for position in range(0, size, step):
            opened.seek(position)
            yield opened.read(_SAMPLE_BYTES)


def _commit(model: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", revision=revision)).parent.name
    except Exception as error:  # SGLang is about to ask for more than this file, and says what is wrong
        logger.warning("forecache: cannot tell which version of %s this is: %s", model, error)
        return ""


async def keep_swept(root: Path, limit_bytes: int) -> None:
    """Sweeps for ever. Of the engines that do, one sweeps in each SWEEP_PERIOD_S."""
    while True:
        await asyncio.sleep(SWEEP_PERIOD_S)
        try:
            await asyncio.to_thread(sweep_in_turn, root, limit_bytes)
        except OSError as error:
            logger.warning("forecache: cannot sweep %s: %s", root, error)


def sweep_in_turn(root: Path, limit_bytes: int) -> Swept | None:
    """A sweep, unless another engine sweeps or has just done so.

    Raises:
        OSError: the folder cannot be read or locked.
    """
    lock = filelock.FileLock(root / _LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return None
    stamp = root / f"{_LOCK}.done"
    try:
        now = time.time()
        if stamp.exists() and 0 <= now - stamp.stat().st_mtime < SWEEP_PERIOD_S / 2:
            return None
        usage = shutil.disk_usage(root)
        swept = sweep(root, limit_bytes, usage.free - int(FREE_SHARE * usage.total), now)
        stamp.touch()
        return swept
    finally:
        lock.release()


def sweep(root: Path, limit_bytes: int, spare_bytes: int, now: float) -> Swept:
    """Removes what was used longest ago, until KEPT_SHARE of the limit is left. Other files than pages stay.

    Args:
        root: of all models.
        limit_bytes: for all of them.
        spare_bytes: what may still be written to the file system; below 0, so much has to go.
        now: in seconds since 1970.
    """
    pages = list(_pages(root, now))
    found = sum(size for _, size, _ in pages)
    if found <= min(limit_bytes, found + spare_bytes):
        return Swept(found, 0)
    allowed = int(KEPT_SHARE * min(limit_bytes, max(0, found + spare_bytes)))
    # Used at about the same time, what came last is the end of a prefix and needs the others.
    pages.sort(key=lambda page: (page[0] // USE_PRECISION_S, -page[0]))
    left = found
    for _, size, path in pages:
        if left <= allowed:
            break
        if _remove(path):
            left -= size
    logger.info("forecache: removed %d of %d bytes from %s; %d may stay", found - left, found, root, allowed)
    return Swept(found, found - left)


def _pages(root: Path, now: float) -> Iterator[tuple[float, int, str]]:
    """Time of the last use, bytes and path of each page; on the way temporary files of the dead are removed."""
    for folder in root.glob(f"*{_SUFFIX}"):
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.endswith((".bin", ".tmp")):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if entry.name.endswith(".bin"):
                    yield status.st_mtime, status.st_size, entry.path
                elif now - status.st_mtime > STALE_S:
                    _remove(entry.path)


def _remove(path: str) -> bool:
    """False if it could not be removed and still takes room."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("forecache: cannot remove %s: %s", path, error)
        return False
    return True
