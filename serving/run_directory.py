"""The one folder for what an engine leaves on disk while it runs: sockets, and temporary files of its processes.

SGLang does not remove its sockets, and a killed engine removes nothing. So each engine has a folder named by its
process, removed at shutdown; and each start removes the folders, and the shared memory, of processes that are gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import psutil

_OWNED = "owned-files"


class RunDirectory:
    """A folder `<tmp>/forecache-<uid>/<pid>-<random>`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path | None = None) -> RunDirectory:
        """A fresh folder for this process, after removing those of processes that are gone."""
        parent = parent or Path(tempfile.gettempdir()) / f"forecache-{os.getuid()}"
        parent.mkdir(mode=0o700, exist_ok=True)
        for path in parent.iterdir():
            pid = path.name.partition("-")[0]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                cls(path).remove()
        path = parent / f"{os.getpid()}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        return cls(path)

    def use_for_temporary_files(self) -> None:
        """From here on this process and its children put their temporary files here."""
        os.environ["TMPDIR"] = str(self.path)
        tempfile.tempdir = str(self.path)

    def own(self, path: str) -> None:
        """`path`, a file elsewhere (shared memory), goes when this folder goes."""
        with (self.path / _OWNED).open("a") as owned:
            owned.write(path + "\n")

    def remove(self) -> None:
        """Removes the folder and the files it owns elsewhere. Nothing to remove is fine."""
        with contextlib.suppress(FileNotFoundError):
            for line in (self.path / _OWNED).read_text().splitlines():
                Path(line).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
