"""Follows a folder of trace files while they are written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from predictor_actor.trace_reader import SUFFIX, ReadResult, TraceError, take_records

_HEAD_BYTES = 64


@dataclass(slots=True)
class _Place:
    """How far a file has been read, how it begins (its header tells files apart), and how long it was then."""

    head: bytes
    offset: int = 0
    size: int = 0
    refused: bool = False


class TraceTail:
    """Gives each trace once, as files grow, appear and are deleted. It keeps a few numbers for each file.

    Args:
        folder: may appear later.
        most_bytes: after about so many bytes a `read` leaves the rest to the next one.
    """

    def __init__(self, folder: Path, most_bytes: int = 1 << 25) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._places: dict[str, _Place] = {}

    def read(self) -> ReadResult:
        """What is new since the last time; nothing if there is nothing new.

        The beginning of a record is left until the rest has come. A file of another version, or one that cannot be
        read, is counted as bad and does not keep the others from being read.
        """
        result = ReadResult()
        left = self._most_bytes
        places: dict[str, _Place] = {}
        for path in self._files(result):
            known = self._places.get(path.name)
            try:
                with path.open("rb") as file:
                    place = places[path.name] = _place_of(file, known)
                    left -= _read_on(file, path, place, left, result)
            except FileNotFoundError:  # deleted just now
                continue
            except OSError as error:
                result.skip(path, "the file", f"it cannot be read: {error.strerror}")
                if known is not None:
                    places.setdefault(path.name, known)
        self._places = places
        result.unfinished = sum(place.offset < place.size and not place.refused for place in places.values())
        return result

    def _files(self, result: ReadResult) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except FileNotFoundError:
            return []
        except OSError as error:
            result.skip(self._folder, "the folder", f"it cannot be read: {error.strerror}")
            return []


def _place_of(file: BinaryIO, known: _Place | None) -> _Place:
    """Where to go on in a file: at its beginning if it is another one than the last time, or was cut."""
    head = file.read(_HEAD_BYTES)
    if known is None or not head.startswith(known.head) or os.fstat(file.fileno()).st_size < known.size:
        return _Place(head)
    known.head = head
    return known


def _read_on(file: BinaryIO, path: Path, place: _Place, most: int, result: ReadResult) -> int:
    """Reads on in a file and moves its place; returns how many bytes it has read."""
    start, taken = place.offset, 0
    if place.refused or most <= 0 or place.size == os.fstat(file.fileno()).st_size:
        return 0
    try:
        for read, offset in take_records(file, path, start, result):
            taken += read
            place.offset, place.size = offset, start + taken
            if taken >= most and offset > start:
                break
    except TraceError as error:
        place.refused = True
        result.skip(path, "the file", str(error))
    return taken
