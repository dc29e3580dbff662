"""The link between actors: who is answered, what becomes of peers that send anything else, and of ends that vanish."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import link
from serving.frames import Frames, Kind
from serving.link import Address, Link, LinkError, LinkServer, RefusedError

HOST = "127.0.0.1"
MAX_BYTES = 1 << 20
LIMIT_S = 20.0


def frame(kind: int, number: int, body: bytes, size: int | None = None) -> bytes:
    return struct.pack("<IIB", len(body) if size is None else size, number, kind) + body


async def echo(question: bytes) -> bytes:
    """Answers by what it is asked: some questions are refused, some fail, some are never answered."""
    match question:
        case b"refuse":
            raise ValueError("not this")
        case b"fail":
            raise RuntimeError("it broke")
        case b"large":
            return bytes(MAX_BYTES + 1)
        case b"silence":
            await asyncio.sleep(3600)
        case b"slow":
            await asyncio.sleep(0.05)
    return question[::-1]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.002)


class Pair:
    """A server that may be replaced by another, and a link that finds the one that serves now."""

    def __init__(self) -> None:
        self.server = LinkServer(echo, HOST, MAX_BYTES)
        self.found = 0
        self.link = Link(self.find, MAX_BYTES)

    async def find(self) -> Address:
        self.found += 1
        return self.server.address

    def replace(self) -> None:
        self.server.close()
        self.server = LinkServer(echo, HOST, MAX_BYTES)

    async def ask(self, question: bytes) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.link.ask(question)

    async def stranger(self, *data: bytes) -> bytes:
        """What somebody is told who sends just this, until the connection is ended."""
        reader, writer = await asyncio.open_connection(HOST, self.server.address.port)
        try:
            for part in data:
                writer.write(part)
            async with asyncio.timeout(LIMIT_S):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    one = Pair()
    yield one
    one.link.close()
    one.server.close()


class TestAnswers:
    async def test_each_question_has_its_own_answer_over_one_connection(self, pair: Pair) -> None:
        questions = [b"slow", *[b"%d" % number for number in range(500)], bytes(MAX_BYTES), b""]
        assert await asyncio.gather(*[pair.ask(one) for one in questions]) == [one[::-1] for one in questions]
        assert pair.found == 1
        assert pair.server.counts == {"peers": 1, "questions": len(questions)}

    async def test_a_refusal_and_a_failure_are_told_apart_and_the_connection_stays(self, pair: Pair) -> None:
        with pytest.raises(RefusedError, match="ValueError: not this"):
            await pair.ask(b"refuse")
        for question, reason in ((b"fail", "it broke"), (b"large", "the limit is")):
            with pytest.raises(LinkError, match=reason):
                await pair.ask(question)
        assert await pair.ask(b"ab") == b"ba"
        assert pair.found == 1
        assert pair.server.counts["refused"] == 1
        assert pair.server.counts["failed"] == 2

    async def test_a_question_that_is_too_large_is_not_sent(self, pair: Pair) -> None:
        with pytest.raises(RefusedError, match="the limit is"):
            await pair.ask(bytes(MAX_BYTES + 1))
        assert await pair.ask(b"ab") == b"ba"

    async def test_one_peer_cannot_have_any_number_of_questions_open(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(link, "IN_FLIGHT", 4)
        large = bytes(200_000)
        slow = [asyncio.create_task(pair.ask(b"slow")) for _ in range(4)]
        assert await asyncio.gather(*[pair.ask(large) for _ in range(20)]) == [large] * 20
        await asyncio.gather(*slow)


class TestLoss:
    async def test_whoever_serves_now_is_found_after_a_restart(self, pair: Pair) -> None:
        assert await pair.ask(b"ab") == b"ba"
        pair.replace()
        (connection,) = [pair.link._connection]
        assert connection is not None
        await until(lambda: connection.is_lost)
        assert await pair.ask(b"ab") == b"ba"
        assert pair.found == 2

    async def test_a_server_that_goes_fails_what_it_was_asked_at_once(self, pair: Pair) -> None:
        asked = [asyncio.create_task(pair.ask(b"silence")) for _ in range(3)]
        await until(lambda: pair.server.counts["questions"] == 3)
        pair.server.close()
        for one in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(one, LinkError)

    async def test_a_question_that_is_given_up_gives_the_connection_up(self, pair: Pair) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pair.link.ask(b"silence")
        assert await pair.ask(b"ab") == b"ba"
        assert pair.found == 2
        await until(lambda: len(pair.server.peers) == 1)

    async def test_nobody_there_is_an_error_and_the_next_question_asks_again(self, pair: Pair) -> None:
        gone = pair.server
        gone.close()
        await until(lambda: not gone.is_open)
        with pytest.raises(LinkError, match="cannot be reached"):
            await pair.ask(b"ab")
        pair.replace()
        assert await pair.ask(b"ab") == b"ba"

    async def test_a_replica_whose_token_is_another_does_not_answer(self, pair: Pair) -> None:
        right = pair.server.address

        async def wrong() -> Address:
            return Address(right.host, right.port, bytes(len(right.token)))

        with pytest.raises(LinkError):
            async with asyncio.timeout(LIMIT_S):
                await Link(wrong, MAX_BYTES).ask(b"ab")
        assert pair.server.counts == {"dropped": 1}

    async def test_an_end_that_stops_listening_is_not_waited_for(self, pair: Pair) -> None:
        """Half open: it accepted, and will never say a word again."""
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(3600), HOST, 0)
        port = silent.sockets[0].getsockname()[1]
        places: list[Address] = [Address(HOST, port, b"")]
        links = Link(lambda: _told(places[0]), MAX_BYTES)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await links.ask(b"ab")
        places[0] = pair.server.address
        async with asyncio.timeout(LIMIT_S):
            assert await links.ask(b"ab") == b"ba"
        links.close()
        silent.close()


class TestStrangers:
    async def test_without_the_token_nothing_is_answered(self, pair: Pair) -> None:
        token = pair.server.address.token
        for data in (
            frame(Kind.QUESTION, 1, b"ab"),
            frame(Kind.HELLO, 0, b""),
            frame(Kind.HELLO, 0, token[:-1] + bytes([token[-1] ^ 1])),
            frame(Kind.HELLO, 0, b"", size=MAX_BYTES),
            b"GET / HTTP/1.1\r\nhost: somewhere\r\n\r\n",
        ):
            assert await pair.stranger(data) == b""
        assert pair.server.counts == {"dropped": 5}
        assert await pair.ask(b"ab") == b"ba"

    async def test_whoever_says_nothing_is_dropped(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(link, "HELLO_LIMIT_S", 0.05)
        assert await pair.stranger() == b""
        assert await pair.stranger(frame(Kind.HELLO, 0, pair.server.address.token)[:-1]) == b""
        assert pair.server.counts == {"dropped": 2}

    async def test_connections_are_limited(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        await pair.ask(b"ab")
        monkeypatch.setattr(link, "MAX_PEERS", 1)
        assert await pair.stranger(frame(Kind.HELLO, 0, pair.server.address.token)) == b""
        assert await pair.ask(b"ab") == b"ba"

    @pytest.mark.parametrize(
        "data",
        [
            frame(Kind.QUESTION, 1, b"", size=MAX_BYTES + 1),
            frame(Kind.ANSWER, 1, b"ab"),
            frame(Kind.HELLO, 0, b"again"),
            frame(77, 1, b"ab"),
        ],
    )
    async def test_a_peer_that_sends_what_is_no_question_is_dropped(self, pair: Pair, data: bytes) -> None:
        hello = frame(Kind.HELLO, 0, pair.server.address.token)
        assert await pair.stranger(hello + frame(Kind.QUESTION, 1, b"silence") + data) == b""
        assert pair.server.counts["dropped"] == 1
        assert await pair.ask(b"ab") == b"ba"

    @pytest.mark.parametrize(
        "data", [frame(Kind.ANSWER, 99, b"ab"), frame(Kind.QUESTION, 1, b"ab"), frame(Kind.ANSWER, 1, b"", 1 << 30)]
    )
    async def test_a_server_that_answers_what_was_not_asked_is_given_up(self, data: bytes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(data)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, HOST, 0)
        address = Address(HOST, server.sockets[0].getsockname()[1], b"")
        with pytest.raises(LinkError):
            async with asyncio.timeout(LIMIT_S):
                await Link(lambda: _told(address), MAX_BYTES).ask(b"ab")
        server.close()

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        known=st.booleans(),
        chunks=st.lists(
            st.one_of(
                st.binary(max_size=80),
                st.builds(
                    frame, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40), st.integers(0, 60)
                ),
            ),
            max_size=8,
        ),
    )
    def test_whatever_comes_it_goes_on_answering_others(self, known: bool, chunks: list[bytes]) -> None:
        async def run() -> None:
            pair = Pair()
            hello = frame(Kind.HELLO, 0, pair.server.address.token) if known else b""
            _, writer = await asyncio.open_connection(HOST, pair.server.address.port)
            for chunk in (hello, *chunks):
                writer.write(chunk)
            assert await pair.ask(b"ab") == b"ba"
            writer.transport.abort()
            assert await pair.ask(b"abc") == b"cba"
            assert pair.server.is_open
            pair.link.close()
            pair.server.close()
            await asyncio.sleep(0)

        asyncio.run(run())

    @settings(max_examples=60, deadline=None)
    @given(
        bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=6),
        cuts=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    )
    def test_frames_may_be_cut_anywhere(self, bodies: list[bytes], cuts: list[int]) -> None:
        class Collected(Frames):
            def __init__(self) -> None:
                super().__init__(MAX_BYTES)
                self.frames: list[tuple[int, int, bytes]] = []

            def take(self, kind: int, number: int, body: bytes) -> None:
                self.frames.append((kind, number, body))

        stream = b"".join(frame(Kind.QUESTION, number, body) for number, body in enumerate(bodies))
        collected = Collected()
        place = turn = 0
        while place < len(stream):
            size = cuts[turn % len(cuts)]
            collected.data_received(stream[place : place + size])
            place, turn = place + size, turn + 1
        assert collected.frames == [(Kind.QUESTION, number, body) for number, body in enumerate(bodies)]


def _told(address: Address) -> Awaitable[Address]:
    async def told() -> Address:
        return address

    return told()
