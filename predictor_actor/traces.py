"""Files of workflow traces: written as workflows end, readable meanwhile, and not lost by a damaged byte.

A file is a sequence of frames (`trace_frames.py`: length and checksum before each). The first holds the header, the
msgpack list `["forecache-traces", VERSION]`, each other one the record of a workflow (`trace_record.py`). Nothing that
has been written is ever changed. A folder holds the files of any number of writers, `NAME-000001.msgpack` and on.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from predictor_actor.base import WorkflowTrace
from predictor_actor.trace_frames import Damage, Frame, split
from predictor_actor.trace_import import JsonlImport, Label, lines
from predictor_actor.trace_record import MAX_RECORD_BYTES, RecordError, decode

FORMAT = "forecache-traces"
VERSION = 1
SUFFIX = ".msgpack"
JSONL_SUFFIX = ".jsonl"

MOST_PROBLEMS = 20
_CHUNK_BYTES = 1 << 22

Progress = Callable[[int, int], None]
"""Told how many bytes have been read, and of how many."""


class TraceError(ValueError):
    """A file or folder that cannot be read at all; says which and what to do."""


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
        bad: how many records, lines, or stretches of damaged bytes were skipped.
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
    files = [file for path in paths for file in _files(path)]
    result = ReadResult()
    total = sum(size for _, size in files)
    done = 0
    for path, size in files:
        start = done
        for read in _read_file(path, label, result):
            done += read
            progress(min(done, total), total)
        done = start + size
    return result


def _files(path: Path) -> list[tuple[Path, int]]:
    """The file, or the files of the folder in the order of their names, each with its size."""
    try:
        if not path.is_dir():
            if path.suffix not in (SUFFIX, JSONL_SUFFIX):
                raise TraceError(f"{path} is neither a {SUFFIX} nor a {JSONL_SUFFIX} file, nor a folder of such files")
            return [(path, path.stat().st_size)]
        files = sorted(file for file in path.iterdir() if file.suffix in (SUFFIX, JSONL_SUFFIX) and file.is_file())
        return [(file, size) for file in files if (size := _size(file)) is not None]
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error


def _size(path: Path) -> int | None:
    """None: it has just been deleted, as the oldest of a full folder."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _read_file(path: Path, label: Label, result: ReadResult) -> Iterator[int]:
    """Reads a file into the result; yields how many bytes it has taken each time."""
    try:
        if path.suffix == JSONL_SUFFIX:
            yield from _read_jsonl(path, label, result)
        else:
            yield from _read_records(path, result)
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error


def _read_jsonl(path: Path, label: Label, result: ReadResult) -> Iterator[int]:
    imported = JsonlImport(label)
    with path.open("rb") as file:
        for number, line in lines(file):
            try:
                imported.add(line)
            except RecordError as error:
                result.skip(path, f"line {number}", str(error))
            yield len(line)
    result.traces += imported.traces()


def _read_records(path: Path, result: ReadResult) -> Iterator[int]:
    place, rest = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            data = rest + chunk
            found, done = split(data, MAX_RECORD_BYTES)
            _take(found, path, place, result)
            place += done
            rest = data[done:]
            yield len(chunk)
    result.unfinished += bool(rest)


def _take(found: Sequence[Frame | Damage], path: Path, base: int, result: ReadResult) -> None:
    """Adds to the result what stands in frames of a file; their offsets count from byte `base`.

    Raises:
        TraceError: the file is of another version.
    """
    for one in found:
        place = f"byte {base + one.offset}"
        if isinstance(one, Damage):
            result.skip(path, place, f"{one.length} bytes are damaged")
            continue
        try:
            fields = msgpack.unpackb(one.payload)
        except Exception as error:  # msgpack raises a family of unrelated types on malformed input
            result.skip(path, place, f"the record is not msgpack: {error}")
            continue
        if type(fields) is list and fields[:1] == [FORMAT]:
            _check_version(fields, path)
            continue
        try:
            result.traces.append(decode(fields))
        except RecordError as error:
            result.skip(path, place, str(error))


def _check_version(header: list[object], path: Path) -> None:
    version = header[1] if len(header) > 1 else None
    if version != VERSION:
        raise TraceError(
            f"{path} is of version {reprlib.repr(version)} of the format; this build reads version {VERSION}:"
            f" read it with the build that wrote it, or leave it out"
        )
