"""A TCP connection cut into frames: what both ends of a link are made of.

A frame is a header (bytes of the body, number, kind) and a body.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import cast

# A peer that has vanished without a word is noticed after about so many seconds.
_SILENT_S = 20
_HEADER = struct.Struct("<IIB")


class Kind(IntEnum):
    HELLO = 0
    QUESTION = 1
    ANSWER = 2
    REFUSED = 3
    FAILED = 4


class MalformedError(Exception):
    """What came is no frame that may come now."""


class Frames(asyncio.Protocol, ABC):
    """One end of a connection: cuts what comes into frames. `max_bytes` of a body."""

    transport: asyncio.Transport

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.is_lost = False
        self._buffer = bytearray()

    @abstractmethod
    def take(self, kind: int, number: int, body: bytes) -> None:
        """A frame has come.

        Raises:
            MalformedError: it may not.
        """

    def malformed(self, reason: str) -> None:
        self.transport.abort()

    def send(self, kind: Kind, number: int, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(_HEADER.pack(len(body), number, kind) + body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _notice_silence(self.transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _HEADER.size:
                size, number, kind = _HEADER.unpack_from(buffer, start)
                if size > self.max_bytes:
                    raise MalformedError(f"a frame of {size} bytes; the limit is {self.max_bytes}")
                end = start + _HEADER.size + size
                if len(buffer) < end:
                    break
                self.take(kind, number, bytes(memoryview(buffer)[start + _HEADER.size : end]))
                start = end
        except MalformedError as error:
            buffer.clear()
            self.malformed(str(error))
            return
        del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._buffer.clear()


def _notice_silence(connection: socket.socket) -> None:
    """Has the kernel end a connection whose other end is not there any more, though it never said so."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, _SILENT_S // 6))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT_S)
