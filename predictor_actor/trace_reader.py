"""Reads traces from files and folders. What cannot be read is skipped, counted and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from predictor_actor.base import WorkflowTrace
from predictor_actor.trace_frames import Damage, Frame, split
from predictor_actor.trace_import import JsonlImport, Label
from predictor_actor.trace_record import MAX_RECORD_BYTES, RecordError, VersionError, decode

SUFFIX = ".msgpack"
JSONL_SUFFIX = ".jsonl"

MOST_PROBLEMS = 20
_CHUNK_BYTES = 1 << 22

Progress = Callable[[int, int], None]
"""Told how many bytes have been read, and of how many."""


class TraceError(ValueError):
    """A file or folder that cannot be read or written at all; says which and what to do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something was skipped; `place` is `line 3` or `byte 4096`."""

    path: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}"


@dataclass(slots=True)
class ReadResult:
    """What was read.

    Attributes:
        bad: how many records, lines, spans, or stretches of damaged bytes were skipped.
        problems: why, for the first MOST_PROBLEMS of them.
        unfinished: files that end in the middle of a record: it is being written, or its writer died.
    """

    traces: list[WorkflowTrace] = field(default_factory=list)
    bad: int = 0
    problems: list[Problem] = field(default_factory=list)
    unfinished: int = 0

    def skip(self, path: Path, place: str, reason: str) -> None:
        """Counts what is left out."""
        self.bad += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(path, place, reason))


def read_traces(
    paths: Sequence[Path], label: Label = "agent", progress: Progress = lambda done, total: None
) -> ReadResult:
    """All traces in files (`.msgpack` or `.jsonl`) and in the folders of such files, in the order given.

    Args:
        label: how callers are named in `.jsonl` files; see `JsonlImport`.

    Raises:
        TraceError: a path is missing or cannot be read, is of another kind, or of another version of the format.
    """
    files = [file for path in paths for file in files_in(path)]
    result = ReadResult()
    total = sum(size for _, size in files)
    start = 0
    for path, size in files:
        done = start
        for read in _read_file(path, label, result):
            done += read
            progress(min(done, total), total)
        start += size
    return result


def files_in(path: Path, suffixes: Sequence[str] = (SUFFIX, JSONL_SUFFIX)) -> list[tuple[Path, int]]:
    """The file, or the files with such suffixes in the folder by name, each with its size in bytes.

    Raises:
        TraceError: it is missing or cannot be read.
    """
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in suffixes and file.is_file())
            return [(file, size) for file in files if (size := _size(file)) is not None]
        return [(path, path.stat().st_size)]
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error


def take_records(file: BinaryIO, path: Path, offset: int, result: ReadResult) -> Iterator[tuple[int, int]]:
    """Adds to the result what stands in a trace file from byte `offset` on.

    Yields, as it goes on, the bytes read and the offset from which to go on; what comes after the last one is the
    beginning of a record.

    Raises:
        TraceError: the file is of another version.
        OSError: it cannot be read.
    """
    file.seek(offset)
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        data = rest + chunk
        found, done = split(data, MAX_RECORD_BYTES)
        for one in found:
            _take(one, path, f"byte {offset + one.offset}", result)
        offset += done
        rest = data[done:]
        yield len(chunk), offset


def _take(one: Frame | Damage, path: Path, place: str, result: ReadResult) -> None:
    if isinstance(one, Damage):
        result.skip(path, place, f"{one.length} bytes are damaged")
        return
    try:
        trace = decode(one.payload)
    except RecordError as error:
        result.skip(path, place, str(error))
    except VersionError as error:
        raise TraceError(f"{path} is of {error}: read it with the build that wrote it, or move it away") from error
    else:
        if trace is not None:
            result.traces.append(trace)


def read_jsonl(path: Path, label: Label, result: ReadResult) -> Iterator[int]:
    """Reads a file of workflows as JSON Lines into the result; yields how many bytes it has taken each time.

    Raises:
        TraceError: it cannot be read.
    """
    imported = JsonlImport(label)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        imported.add(line)
                    except RecordError as error:
                        result.skip(path, f"line {number}", str(error))
                yield len(line)
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error
    result.traces += imported.traces()


def _read_file(path: Path, label: Label, result: ReadResult) -> Iterator[int]:
    if path.suffix == JSONL_SUFFIX:
        return read_jsonl(path, label, result)
    if path.suffix == SUFFIX:
        return _read_records(path, result)
    raise TraceError(f"{path} is not a file that ends in {SUFFIX} or {JSONL_SUFFIX}, nor a folder of such files")


def _read_records(path: Path, result: ReadResult) -> Iterator[int]:
    taken = done = 0
    try:
        with path.open("rb") as file:
            for read, offset in take_records(file, path, 0, result):
                taken, done = taken + read, offset
                yield read
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error
    result.unfinished += done < taken


def _size(path: Path) -> int | None:
    """None: it has just been deleted, as the oldest of a full folder."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
