"""The socket between schedulers and their replica: in order, never blocking, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from cache_actor.messages import Beat, CallsStarted, CallStarted, Message, RequestIdentity, encode
from serving.sglang_plugin.channel import _SOCKET_MESSAGES, EventReceiver, EventSender, new_address


def beat(forwards: int) -> Beat:
    return Beat(rank=0, pid=1, forwards=forwards, forward_tokens=0, running=0, waiting=0, at=0.0)


async def first(count: int, receiver: EventReceiver) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(10):
        async for message in receiver.messages():
            found.append(message)
            if len(found) == count:
                break
    return found


def sockets_of_the_machine() -> str:
    return Path("/proc/net/unix").read_text()


@pytest.fixture
def address() -> str:
    return new_address()


@pytest.fixture
async def receiver(address: str) -> AsyncIterator[EventReceiver]:
    receiver = EventReceiver(address)
    yield receiver
    receiver.close()


class TestMessages:
    async def test_they_arrive_whole_and_in_order(self, address: str, receiver: EventReceiver) -> None:
        identity = RequestIdentity(
            "workflow é", "agent", parent="p", final=True, priority=3, tenant="t", source="header"
        )
        sent: list[Message] = [beat(i) for i in range(2000)]
        sent[1000] = CallsStarted([CallStarted("rid", 12, identity)])
        sender = EventSender(address)
        for message in sent:
            sender.send(message)
        assert await first(1000, receiver) == sent[:1000]
        sender.flush()
        assert await first(1000, receiver) == sent[1000:]
        assert sender.dropped == receiver.malformed == 0

    async def test_they_wait_for_a_receiver_that_comes_later(self, address: str) -> None:
        sender = EventSender(address)
        sender.send(beat(1))
        receiver = EventReceiver(address)
        try:
            assert await first(1, receiver) == [beat(1)]
        finally:
            receiver.close()

    async def test_those_of_each_of_several_ranks_keep_their_order(self, address: str, receiver: EventReceiver) -> None:
        senders = [EventSender(address) for _ in range(2)]
        for i in range(100):
            for pid, sender in enumerate(senders):
                sender.send(Beat(pid, pid, i, 0, 0, 0, 0.0))
        found = [message for message in await first(200, receiver) if isinstance(message, Beat)]
        for pid in range(2):
            assert [message.forwards for message in found if message.pid == pid] == list(range(100))

    async def test_bytes_that_are_no_message_are_counted_and_passed_over(
        self, address: str, receiver: EventReceiver
    ) -> None:
        raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        raw.connect(address)
        for data in (b"", b"\xc1", b"not msgpack", b"\x93\x01\xa4beat\x00", encode(beat(5))):
            raw.send(data)
        assert await first(1, receiver) == [beat(5)]
        assert receiver.malformed == 4
        raw.close()


class TestSender:
    def test_without_a_receiver_it_never_blocks_and_counts_what_it_dropped(self, address: str) -> None:
        sender = EventSender(address, high_water_mark=10)
        started = time.monotonic()
        for i in range(3000):
            sender.send(beat(i))
        assert time.monotonic() - started < 1
        assert sender.dropped == 3000 - _SOCKET_MESSAGES - 10

    async def test_what_is_dropped_is_the_oldest_that_can_be(self, address: str) -> None:
        sender = EventSender(address, high_water_mark=10)
        for i in range(3000):
            sender.send(beat(i))
        receiver = EventReceiver(address)
        try:
            held = await first(_SOCKET_MESSAGES, receiver)
            sender.flush()
            assert held + await first(10, receiver) == [beat(i) for i in [*range(_SOCKET_MESSAGES), *range(2990, 3000)]]
        finally:
            receiver.close()

    async def test_a_receiver_that_takes_nothing_does_not_block_it(self, address: str, receiver: EventReceiver) -> None:
        sender = EventSender(address, high_water_mark=10)
        started = time.monotonic()
        for i in range(50_000):
            sender.send(beat(i))
        assert time.monotonic() - started < 10
        assert sender.dropped > 0
        assert await first(1, receiver) == [beat(0)]

    def test_a_message_that_cannot_be_encoded_is_dropped_and_counted(self, address: str) -> None:
        """The scheduler calls `send`: an exception there would end the engine."""
        sender = EventSender(address)
        sender.send(CallsStarted([CallStarted("\ud800", 1, None)]))
        assert sender.dropped == 1


class TestAddress:
    def test_every_one_is_fresh_and_names_its_process(self) -> None:
        addresses = {new_address() for _ in range(100)}
        assert len(addresses) == 100
        assert all(f"-{os.getpid()}-" in address for address in addresses)

    async def test_no_file_is_left_behind(self, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        receiver, sender = EventReceiver(address), EventSender(address)
        sender.send(beat(1))
        assert await first(1, receiver) == [beat(1)]
        name = address.removeprefix("ipc://@")
        assert f"@{name}" in sockets_of_the_machine()
        assert name not in {*os.listdir(tmp_path), *os.listdir("/tmp")}
        receiver.close()
        assert f"@{name}" not in sockets_of_the_machine()
