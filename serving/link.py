"""Questions and answers over one TCP connection, between actors that exchange many small messages.

A call of a Ray Serve handle costs milliseconds of processor time at both ends. So a handle is asked once, for the
`Address` of a replica, and what follows goes directly. A connection that is lost, or whose answer comes too late, is
given up, and the handle is asked again: it knows who serves now.

A peer's first frame says the token that the address came with; whoever does not know it, or sends what is no frame, is
dropped and counted. Nothing is encrypted: this is for the network that Ray's own messages go over.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from serving.frames import Frames, Kind, MalformedError

logger = logging.getLogger("forecache")

# Within which a new peer must have said the token, in seconds.
HELLO_LIMIT_S = 5.0
# Connections at once; beyond it new ones are dropped.
MAX_PEERS = 8192
# Questions of one peer that are not answered yet; beyond it nothing more is read from it.
IN_FLIGHT = 256
_TOKEN_BYTES = 32
_MAX_REASON = 500


class LinkError(ConnectionError):
    """There is no answer: no connection, or the other end failed."""


class RefusedError(ValueError):
    """The other end cannot take this question, and would not the next time."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a `LinkServer` is, and what it wants to hear first."""

    host: str
    port: int
    token: bytes = field(repr=False)


class LinkServer:
    """Answers the questions of all who know its token. To be made in a running event loop.

    Args:
        answer: a question's answer; a ValueError is told to whoever asked as a refusal, anything else as a failure.
        host: the address of this machine to listen at; the port is any.
        max_bytes: of a question, and of an answer.

    Attributes:
        address: how to reach it.
        counts: `peers` that said the token, `questions`, `refused`, `failed`; peers `dropped` for what they sent or
            did not.
    """

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]], host: str, max_bytes: int) -> None:
        self.answer = answer
        self.max_bytes = max_bytes
        self.counts: Counter[str] = Counter()
        self.peers: set[_Peer] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._serve())

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    def close(self) -> None:
        """Listens no longer and drops all peers; what they wait for is not answered."""
        self._task.cancel()
        for peer in list(self.peers):
            peer.transport.abort()

    async def _serve(self) -> None:
        with self._socket:
            async with await self._loop.create_server(lambda: _Peer(self), sock=self._socket) as server:
                await server.serve_forever()


class Link:
    """The end that asks. Many may ask at once; they share a connection, which is made when it is needed.

    Args:
        find: the address of whoever serves now.
        max_bytes: of a question, and of an answer.
    """

    def __init__(self, find: Callable[[], Awaitable[Address]], max_bytes: int) -> None:
        self._find = find
        self._max_bytes = max_bytes
        self._connection: _Asking | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, question: bytes) -> bytes:
        """The answer. Cancelling it, as a time limit does, gives the connection up, and all that is asked on it.

        Raises:
            RefusedError: the other end cannot take the question, or it is too large.
            LinkError: nobody answers; whoever is found then is asked the next time.
            Exception: whatever `find` raises.
        """
        if len(question) > self._max_bytes:
            raise RefusedError(f"a question of {len(question)} bytes; the limit is {self._max_bytes}")
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._connection = await self._connect()
        return await self._connection.ask(question)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    async def _connect(self) -> _Asking:
        address = await self._find()
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Asking(self._max_bytes), address.host, address.port
            )
        except OSError as error:
            raise LinkError(f"{address.host}:{address.port} cannot be reached: {error}") from error
        connection.send(Kind.HELLO, 0, address.token)
        return connection


class _Peer(Frames):
    """A connection that a `LinkServer` has accepted."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__(_TOKEN_BYTES)  # until the token is known
        self._server = server
        self._is_known = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.peers.add(self)
        self._late = asyncio.get_running_loop().call_later(HELLO_LIMIT_S, self.malformed, "no token in time")
        if len(self._server.peers) > MAX_PEERS:
            self.malformed(f"more than {MAX_PEERS} connections")

    def take(self, kind: int, number: int, body: bytes) -> None:
        if self._is_known and kind == Kind.QUESTION:
            self._server.counts["questions"] += 1
            task = asyncio.get_running_loop().create_task(self._answer(number, body))
            self._tasks.add(task)
            task.add_done_callback(self._answered)
            self._regulate()
        elif not self._is_known and kind == Kind.HELLO and hmac.compare_digest(body, self._server.address.token):
            self._is_known = True
            self.max_bytes = self._server.max_bytes
            self._server.counts["peers"] += 1
            self._late.cancel()
        else:
            raise MalformedError(f"a frame of kind {kind} from a peer that is {'' if self._is_known else 'not '}known")

    def malformed(self, reason: str) -> None:
        super().malformed(reason)
        self._server.counts["dropped"] += 1
        logger.warning("forecache: a connection was dropped: %s", reason)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._late.cancel()
        self._server.peers.discard(self)
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        """It does not read its answers: nothing more is read from it meanwhile."""
        self._is_full = True
        self._regulate()

    def resume_writing(self) -> None:
        self._is_full = False
        self._regulate()

    async def _answer(self, number: int, question: bytes) -> None:
        kind, body = Kind.ANSWER, b""
        try:
            body = await self._server.answer(question)
            if len(body) > self._server.max_bytes:
                raise RuntimeError(f"an answer of {len(body)} bytes; the limit is {self._server.max_bytes}")
        except ValueError as error:
            self._server.counts["refused"] += 1
            kind, body = Kind.REFUSED, _reason(error)
        except Exception as error:  # whoever asked is told, and this end serves on
            self._server.counts["failed"] += 1
            logger.exception("forecache: a question could not be answered")
            kind, body = Kind.FAILED, _reason(error)
        self.send(kind, number, body)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._regulate()

    def _regulate(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_full or len(self._tasks) >= IN_FLIGHT:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class _Asking(Frames):
    """A connection to a `LinkServer`."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, question: bytes) -> bytes:
        number = next(self._numbers) & 0xFFFFFFFF
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.send(Kind.QUESTION, number, question)
        try:
            return await answer
        except asyncio.CancelledError:
            self.transport.abort()
            self.is_lost = True
            raise
        finally:
            self._waiting.pop(number, None)

    def take(self, kind: int, number: int, body: bytes) -> None:
        answer = self._waiting.get(number)
        if answer is None or kind not in (Kind.ANSWER, Kind.REFUSED, Kind.FAILED):
            raise MalformedError(f"a frame of kind {kind} and number {number} was not expected")
        if answer.done():
            return
        if kind == Kind.ANSWER:
            answer.set_result(body)
        else:
            text = body.decode(errors="replace")
            answer.set_exception(RefusedError(text) if kind == Kind.REFUSED else LinkError(text))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkError("the connection was lost"))


def _reason(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON].encode(errors="replace")
