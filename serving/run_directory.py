"""The one folder for what an engine leaves on disk while it runs: sockets, and temporary files of its processes.

SGLang does not remove its sockets, and a killed engine removes nothing. So each engine has a folder named by its
process, removed at shutdown; and each start removes the folders, and the shared memory, of processes that are gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
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
        """A fresh folder for this process, after removing those of processes that are gone.

        Raises:
            PermissionError: somebody else owns `parent` or may write in it, and could have us remove our own files.
        """
        parent = parent or Path(tempfile.gettempdir()) / f"forecache-{os.getuid()}"
        parent.mkdir(mode=0o700, exist_ok=True)
        _check_ours(parent)
        for path in parent.iterdir():
            pid = path.name.partition("-")[0]
            # A number that is taken again keeps its folder until the next start after that process.
            if path.is_dir() and pid.isdecimal() and not psutil.pid_exists(int(pid)):
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
            for line in (self.path / _OWNED).read_text(errors="surrogateescape").splitlines():
                with contextlib.suppress(OSError, ValueError):  # gone, not ours to remove, or no path at all
                    Path(line).unlink()
        shutil.rmtree(self.path, ignore_errors=True)


def _check_ours(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder} must be a folder that only you can write in; remove it, or set TMPDIR to a folder of yours"
        )
