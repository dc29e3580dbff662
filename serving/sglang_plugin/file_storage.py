"""HiCache's file backend as engines on a shared, bounded folder need it: a file a page, written and removed by many.

SGLang's own takes any file of the right name for the page: one that is too short fails all pages read with it and is
never replaced, one that is too long is of something else and would be served. And on a full disk it tries, and logs,
every page. The names and the bytes of files are SGLang's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.storage import StorageBackendFactory

from serving.sglang_plugin.channel import ADDRESS_VARIABLE
from serving.sglang_plugin.settings import USE_PRECISION_S

logger = logging.getLogger("forecache")

# How long nothing is written after a write that failed, in seconds.
PAUSE_S = 10.0


def install() -> None:
    """Makes it SGLang's backend `file`, in engines that Forecache has started."""
    if os.environ.get(ADDRESS_VARIABLE):
        StorageBackendFactory._registry.pop("file", None)  # SGLang would warn of a second one
        StorageBackendFactory.register_backend("file", __name__, PageFiles.__name__)


class PageFiles(HiCacheFile):
    """SGLang's file backend. What it cannot read is a miss, what it cannot write is not stored; nothing is raised."""

    _resting_until = 0.0

    def get(self, key: str, target_location: torch.Tensor, target_sizes: Any | None = None) -> torch.Tensor | None:
        """The page, read into `target_location`; None if there is none, or the file is not of its size and goes."""
        path = self._path(key)
        wanted = target_location.numel() * target_location.element_size()
        try:
            found = path.stat()
            if found.st_size != wanted:
                logger.warning("forecache: %s has %d bytes, not %d; removing it", path, found.st_size, wanted)
                path.unlink()
                return None
            page: torch.Tensor | None = super().get(key, target_location, target_sizes)
            if time.time() - found.st_mtime > USE_PRECISION_S:
                os.utime(path)
        except FileNotFoundError:  # removed since SGLang asked for it
            return None
        except OSError as error:
            logger.warning("forecache: cannot read %s: %s", path, error)
            return None
        return page

    def batch_get(
        self, keys: Sequence[str], target_locations: Sequence[torch.Tensor], target_sizes: Any | None = None
    ) -> list[torch.Tensor | None]:
        """The pages up to the first that is missing: what follows it is of no use."""
        pages: list[torch.Tensor | None] = []
        for key, target in zip(keys, target_locations, strict=True):
            pages.append(self.get(key, target))
            if pages[-1] is None:
                break
        return pages + [None] * (len(keys) - len(pages))

    def set(
        self,
        key: str,
        value: Any | None = None,
        target_location: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        """Whether the page is stored now. After a failure nothing is, for a while."""
        now = time.monotonic()
        if now < self._resting_until:
            return False
        self._tidy(key, value)
        stored: bool = super().set(key, value, target_location, target_sizes)
        if not stored:
            self._resting_until = now + PAUSE_S
            with contextlib.suppress(OSError):  # somebody may have removed the folder
                Path(self.file_path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return stored

    def _tidy(self, key: str, value: Any) -> None:
        """A page that is stored already is used; a file of another size in its place goes."""
        path = self._path(key)
        with contextlib.suppress(OSError):  # there is none, or SGLang will say what is wrong with it
            if path.stat().st_size == value.numel() * value.element_size():
                os.utime(path)
            else:
                path.unlink()

    def _path(self, key: str) -> Path:
        return Path(self.file_path) / f"{self._get_suffixed_key(key)}.bin"
