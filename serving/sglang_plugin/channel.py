"""The local socket between an engine's scheduler processes and the replica that owns them.

The socket is in Linux's abstract namespace: it leaves no file behind, however its processes die. The scheduler
side never waits: while nobody takes them it keeps the newest messages, and drops and counts the oldest.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator

import zmq
import zmq.asyncio

from cache_actor.codec import MessageError
from cache_actor.messages import Message, decode, encode

ADDRESS_VARIABLE = "FORECACHE_CHANNEL"
HIGH_WATER_MARK = 10_000
# In the socket, where they cannot be taken back when newer ones come.
_SOCKET_MESSAGES = 1000


def new_address() -> str:
    """A fresh address; put it into the environment under `ADDRESS_VARIABLE` before the engine starts."""
    return f"ipc://@forecache-{os.getpid()}-{secrets.token_hex(8)}"


class EventSender:
    """The scheduler's end. `send` takes microseconds, never blocks and never raises, for an exception there would end
    the engine; `dropped` counts what made way for newer messages or cannot be encoded.

    Args:
        address: where the receiver is, or will be.
        high_water_mark: messages that are kept while it takes none, apart from the few that the socket holds.
    """

    def __init__(self, address: str, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self.dropped = 0
        self._kept: deque[bytes] = deque()
        self._high_water_mark = high_water_mark
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _SOCKET_MESSAGES)
        self._socket.connect(address)

    def send(self, message: Message) -> None:
        try:
            self._kept.append(encode(message))
        except UnicodeEncodeError:
            self.dropped += 1
        self.flush()
        while len(self._kept) > self._high_water_mark:
            self._kept.popleft()
            self.dropped += 1

    def flush(self) -> None:
        """Sends what the socket has room for; every `send` does so, and beats come four times a second."""
        with contextlib.suppress(zmq.Again):
            while self._kept:
                self._socket.send(self._kept[0], zmq.NOBLOCK, copy=True)
                self._kept.popleft()


class EventReceiver:
    """The replica's end: an endless stream of messages. `malformed` counts bytes that were none."""

    def __init__(self, address: str) -> None:
        self.malformed = 0
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.bind(address)

    async def messages(self) -> AsyncIterator[Message]:
        while True:
            data = await self._socket.recv()
            try:
                yield decode(data)
            except MessageError:
                self.malformed += 1

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
