"""What an engine says of one call reaches its consumer whole, in order, and ends."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.calls import JSON, SSE, Reply
from serving.errors import ApiError
from serving.parts import Parts

BEGUN = Reply(200, SSE, "engine", b"data: first\n\n")
GONE = ApiError(503, "the engine is down", code="engine_unavailable", retry_after_s=2)


def as_reply(error: ApiError) -> Reply:
    return Reply(error.status, JSON, "engine", orjson.dumps(error.body()), error.retry_after_s)


def fail(parts: Parts) -> None:
    parts.fail(GONE, as_reply)


async def taken(parts: Parts) -> list[Reply | bytes]:
    async with asyncio.timeout(5):
        return [part async for part in parts]


class TestOrder:
    async def test_the_reply_comes_first_and_chunks_that_piled_up_come_as_one(self) -> None:
        parts = Parts()
        for part in (BEGUN, b"a", b"b", b"c"):
            parts.put(part)
        parts.end()
        assert await taken(parts) == [BEGUN, b"abc"]

    async def test_what_is_put_while_a_part_is_out_comes_after_it(self) -> None:
        parts = Parts()
        parts.put(BEGUN)
        parts.put(b"a")
        stream = aiter(parts)
        assert await anext(stream) == BEGUN
        parts.put(b"b")
        assert await anext(stream) == b"a"
        parts.put(b"c")
        parts.end()
        assert await anext(stream) == b"bc"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    @given(st.lists(st.binary(min_size=1, max_size=5), max_size=20), st.lists(st.booleans(), min_size=20, max_size=20))
    def test_no_byte_is_lost_or_moved_whatever_the_consumers_pace(
        self, chunks: list[bytes], pauses: list[bool]
    ) -> None:
        async def scenario() -> list[Reply | bytes]:
            parts = Parts()
            consumer = asyncio.create_task(taken(parts))
            parts.put(BEGUN)
            for chunk, pause in zip(chunks, pauses, strict=False):
                parts.put(chunk)
                if pause:
                    await asyncio.sleep(0)
            parts.end()
            return await consumer

        first, *rest = asyncio.run(scenario())
        assert first == BEGUN
        assert b"".join(part for part in rest if isinstance(part, bytes)) == b"".join(chunks)


class TestEnd:
    async def test_without_anything_there_are_no_parts(self) -> None:
        parts = Parts()
        parts.end()
        assert await taken(parts) == []

    async def test_it_wakes_a_consumer_that_waits(self) -> None:
        parts = Parts()
        consumer = asyncio.create_task(taken(parts))
        await asyncio.sleep(0)
        parts.end()
        assert await consumer == []

    async def test_what_is_put_after_it_is_ignored(self) -> None:
        parts = Parts()
        parts.put(BEGUN)
        parts.end()
        parts.put(b"late")
        parts.end()
        assert await taken(parts) == [BEGUN]


class TestFail:
    async def test_before_the_call_has_begun_the_error_is_the_reply(self) -> None:
        parts = Parts()
        fail(parts)
        (reply,) = await taken(parts)
        assert isinstance(reply, Reply)
        assert reply.status == 503
        assert reply.retry_after_s == 2
        assert orjson.loads(reply.body)["error"]["code"] == "engine_unavailable"

    async def test_after_the_call_has_begun_the_error_is_the_last_event(self) -> None:
        parts = Parts()
        parts.put(BEGUN)
        parts.put(b"data: a\n\n")
        fail(parts)
        parts.put(b"data: late\n\n")
        reply, events = await taken(parts)
        assert reply == BEGUN
        assert isinstance(events, bytes)
        *chunks, error = events.removesuffix(b"\n\n").split(b"\n\n")
        assert chunks == [b"data: a"]
        assert orjson.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_unavailable"

    async def test_of_a_call_that_has_ended_changes_nothing(self) -> None:
        parts = Parts()
        parts.put(BEGUN)
        parts.end()
        fail(parts)
        assert await taken(parts) == [BEGUN]
