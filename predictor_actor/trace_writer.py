"""Writes traces into a folder of files, in bounded space."""

from __future__ import annotations

import os
import re
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from predictor_actor.base import WorkflowTrace
from predictor_actor.trace_frames import frame
from predictor_actor.trace_reader import SUFFIX
from predictor_actor.trace_record import RecordError, encode, header

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_NUMBERED = re.compile(r"(.+)-(\d{6,})" + re.escape(SUFFIX))


class TraceWriter:
    """Appends traces to files `NAME-000001.msgpack` and on, each trace in one piece and at once.

    It never writes to a file of another writer, an earlier one of its name included, so a process may die at any
    time. The first file appears with the first trace. For one thread.

    Args:
        name: of this writer: letters, digits, `.`, `_` and `-`. Writers at work in one folder may share it.
        max_file_bytes: with the trace that exceeds it a new file begins.
        max_folder_bytes: of all writers' files. When a file is begun the oldest go, until there is room for all it
            may become; None: none goes.

    Attributes:
        written: traces that stand in files.
        rejected: traces that were beyond the limits of a record, or held values that a trace cannot have.
        last_reason: why, for the latest of them.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        max_file_bytes: int = 1 << 24,
        max_folder_bytes: int | None = 1 << 28,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a writer is named by 1 to 100 letters, digits, '.', '_' or '-', not {name!r}")
        if max_file_bytes < 1:
            raise ValueError(f"max_file_bytes is {max_file_bytes}; give at least 1")
        if max_folder_bytes is not None and max_folder_bytes < max_file_bytes:
            raise ValueError(f"max_folder_bytes {max_folder_bytes} is less than max_file_bytes {max_file_bytes}")
        self._folder = folder
        self._name = name
        self._max_file_bytes = max_file_bytes
        self._max_folder_bytes = max_folder_bytes
        self._file: FileIO | None = None
        self._size = 0
        self.written = 0
        self.rejected = 0
        self.last_reason = ""

    def write(self, trace: WorkflowTrace) -> bool:
        """Appends a trace; False if it was rejected.

        Raises:
            OSError: the file cannot be written. What was written before stays, and the next trace begins a new file.
        """
        try:
            framed = frame(encode(trace))
        except RecordError as error:
            self.rejected += 1
            self.last_reason = str(error)
            return False
        try:
            file = self._file_for(len(framed))
            self._append(file, framed)
        except BaseException:
            self.close()
            raise
        self.written += 1
        return True

    def close(self) -> None:
        """Closes the file; a later trace begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _file_for(self, more: int) -> FileIO:
        """The file to append to: another one if this one is full or was deleted, as the oldest, by another writer."""
        file = self._file
        if file is not None and self._size + more <= self._max_file_bytes and os.fstat(file.fileno()).st_nlink:
            return file
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._max_folder_bytes is not None:
            make_room(self._folder, self._max_folder_bytes - self._max_file_bytes)
        self._file, self._size = self._begin(), 0
        self._append(self._file, frame(header()))
        return self._file

    def _begin(self) -> FileIO:
        number = max((number for name, number in _numbered(self._folder) if name == self._name), default=0)
        while True:
            number += 1
            try:
                return FileIO(self._folder / f"{self._name}-{number:06d}{SUFFIX}", "xb")
            except FileExistsError:  # another writer of this name was faster
                continue

    def _append(self, file: FileIO, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = file.write(left) or 0
            self._size += count
            left = left[count:]


def make_room(folder: Path, most_bytes: int) -> None:
    """Deletes writers' files in the folder, the oldest first, until they have no more bytes than this together."""
    files = []
    for path in folder.iterdir():
        if _NUMBERED.fullmatch(path.name):
            try:
                state = path.stat()
            except FileNotFoundError:
                continue
            files.append((state.st_mtime_ns, path.name, path, state.st_size))
    files.sort()
    total = sum(size for *_, size in files)
    for _, _, path, size in files:
        if total <= most_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def _numbered(folder: Path) -> list[tuple[str, int]]:
    """Names and numbers of the writers' files."""
    found = [_NUMBERED.fullmatch(path.name) for path in folder.iterdir()]
    return [(match[1], int(match[2])) for match in found if match]
