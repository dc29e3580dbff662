"""Frames in a byte stream: what is damaged is noticed, skipped, and does not take its neighbours along.

    frame = SYNC (4 bytes) | length of the payload (u32) | crc32 of length and payload (u32) | payload

Numbers are little-endian. SYNC begins with 0xC1, the one byte that msgpack never uses for a value. A reader that meets
anything else looks for the next SYNC whose checksum is right. A frame that is not complete yet is left to be read when
more has come; but one that is followed by a complete frame will never be completed, and is damaged.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

SYNC = b"\xc1FCT"
_NUMBERS = struct.Struct("<II")
HEAD_BYTES = len(SYNC) + _NUMBERS.size


@dataclass(frozen=True, slots=True)
class Frame:
    """The payload of an undamaged frame, and at which byte the frame begins."""

    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no frame, from `offset` on."""

    offset: int
    length: int


def frame(payload: bytes) -> bytes:
    """The payload, framed."""
    length = len(payload)
    return SYNC + _NUMBERS.pack(length, _checksum(length, payload)) + payload


def split(data: bytes, max_payload: int) -> tuple[list[Frame | Damage], int]:
    """What is in `data`, in order, and how many of its bytes are done with.

    The rest, if any, may be the beginning of a frame: to be given again, with what follows it.
    """
    found: list[Frame | Damage] = []
    place = lost = 0  # `lost`: from here to `place` is damaged
    waiting: int | None = None
    while True:
        payload = _payload_at(data, place, max_payload)
        if isinstance(payload, bytes):
            if lost < place:
                found.append(Damage(lost, place - lost))
            found.append(Frame(place, payload))
            place += HEAD_BYTES + len(payload)
            lost, waiting = place, None
            continue
        if payload is None and waiting is None:
            waiting = place
        place = _next_sync(data, place + 1)
        if place >= len(data):
            break
    done = len(data) if waiting is None else waiting
    if lost < done:
        found.append(Damage(lost, done - lost))
    return found, done


def _payload_at(data: bytes, place: int, max_payload: int) -> bytes | bool | None:
    """The payload of the frame that begins at `place`; None: it may go on beyond the data; False: there is none."""
    head = data[place : place + HEAD_BYTES]
    if not head.startswith(SYNC):
        return None if head and SYNC.startswith(head) else False
    if len(head) < HEAD_BYTES:
        return None
    length, checksum = _NUMBERS.unpack_from(head, len(SYNC))
    if length > max_payload:
        return False
    payload = data[place + HEAD_BYTES : place + HEAD_BYTES + length]
    if len(payload) < length:
        return None
    return payload if _checksum(length, payload) == checksum else False


def _next_sync(data: bytes, start: int) -> int:
    """Where SYNC, or its beginning at the end of the data, comes next; the length of the data if nowhere."""
    place = data.find(SYNC, start)
    if place >= 0:
        return place
    for place in range(max(start, len(data) - len(SYNC) + 1), len(data)):
        if SYNC.startswith(data[place:]):
            return place
    return len(data)


def _checksum(length: int, payload: bytes) -> int:
    return zlib.crc32(payload, length)
