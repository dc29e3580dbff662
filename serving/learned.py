"""What an engine's cache has learned, kept in a small file for the next engine of the model on this machine.

It is safe to lose and safe to share: engines of one model write the same file in turn, each as a whole, and a file that
cannot be used is left alone with a warning.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import orjson

from serving.models import cache_folder

logger = logging.getLogger("forecache")


class LearnedFile:
    """The file of one model.

    Args:
        folder: of all such files; None: `learned` in Forecache's cache folder; empty: nothing is kept.
        model: the name it is served under.
    """

    def __init__(self, folder: str | None, model: str) -> None:
        self._off = folder == ""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:100]
        self.path = (Path(folder) if folder else cache_folder() / "learned") / f"{name}.json"

    def copy_to(self, folder: Path) -> str:
        """A copy that stays as it is while engines write the file; its path, empty if there is nothing to copy.

        All tensor-parallel ranks of an engine must read the same.
        """
        copy = folder / "learned.json"
        if self._off:
            return ""
        try:
            shutil.copyfile(self.path, copy)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                logger.warning("forecache: cannot read %s (%s); starting without what was learned", self.path, error)
            return ""
        return str(copy)

    def save(self, learned: dict[str, Any]) -> None:
        """Replaces the file; a failure is logged and changes nothing."""
        if self._off:
            return
        fresh = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(orjson.dumps(learned))
            fresh.replace(self.path)
        except OSError as error:
            logger.warning("forecache: cannot keep what was learned in %s: %s", self.path, error)
