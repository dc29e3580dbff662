"""Snapshots by way of deltas: the same at the other end, whatever was missed."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_of_engines import snapshot, snapshots

from cache_actor.codec import MessageError
from cache_actor.messages import VERSION, Ask, encode
from cache_actor.snapshot_deltas import DELTAS_KEPT, SnapshotDecoder, SnapshotEncoder
from cache_actor.snapshots import EngineSnapshot, Resident

steps = st.lists(
    st.tuples(
        st.lists(snapshots(), max_size=4, unique_by=lambda one: one.engine),
        st.booleans(),
    ),
    max_size=40,
)
AHEAD = 64.0


class Receiver:
    """Holds what it has heard; its clock is AHEAD of the encoder's."""

    def __init__(self, encoder: SnapshotEncoder) -> None:
        self._encoder = encoder
        self._decoder = SnapshotDecoder()
        self.engines: dict[str, EngineSnapshot] = {}

    def hear(self, now: float) -> None:
        while (delta := self._encoder.after(self._decoder.number)) is not None:
            heard = self._decoder.apply(delta, now + AHEAD)
            if heard is not None:
                new, gone = heard
                for engine in gone:
                    del self.engines[engine]
                self.engines |= {one.engine: one for one in new}


@given(steps)
def test_a_receiver_knows_what_was_told_though_it_listens_seldom(
    said: list[tuple[list[EngineSnapshot], bool]],
) -> None:
    encoder = SnapshotEncoder()
    receiver = Receiver(encoder)
    for number, (snapshots_then, listens) in enumerate(said):
        told = [replace(one, version=number, at=float(number)) for one in snapshots_then]
        encoder.tell(told, float(number))
        if listens:
            receiver.hear(float(number))
            assert receiver.engines == {one.engine: replace(one, at=number + AHEAD) for one in told}


def test_one_that_is_far_behind_is_told_the_whole_at_once() -> None:
    encoder = SnapshotEncoder()
    decoder = SnapshotDecoder()
    for number in range(2 * DELTAS_KEPT):
        encoder.tell([snapshot("a", number, running_calls=number)], float(number))
        if not number:
            assert decoder.apply(encoder.after(-1) or b"", 0.0) is not None
    whole = encoder.after(decoder.number)
    assert whole is not None
    heard = decoder.apply(whole, 0.0)
    assert heard is not None
    assert [one.running_calls for one in heard[0]] == [2 * DELTAS_KEPT - 1]
    assert encoder.after(decoder.number) is None


def test_a_receiver_of_another_encoder_is_told_the_whole() -> None:
    encoder, decoder = SnapshotEncoder(), SnapshotDecoder()
    for number in range(4):
        encoder.tell([snapshot("a", number), snapshot("b", number)], 0.0)
    assert decoder.apply(encoder.after(-1) or b"", 0.0) is not None
    restarted = SnapshotEncoder(number=1000)
    restarted.tell([snapshot("b", 9)], 0.0)
    assert restarted.after(decoder.number) is not None
    assert decoder.apply(restarted.after(decoder.number) or b"", 0.0) == ([snapshot("b", 9)], ["a"])


def test_a_delta_that_does_not_follow_is_not_taken() -> None:
    encoder, decoder = SnapshotEncoder(), SnapshotDecoder()
    assert decoder.apply(encoder.tell([snapshot("a")], 0.0), 0.0) is None
    assert decoder.number == -1


def test_what_has_not_changed_is_not_sent() -> None:
    encoder = SnapshotEncoder()
    many = {f"workflow-{number}": Resident(1000 + number) for number in range(200)}
    first = encoder.tell([snapshot("a", 1, workflows=many)], 0.0)
    second = encoder.tell([snapshot("a", 2, workflows=many | {"workflow-7": Resident(9)})], 0.2)
    assert len(first) > 3000
    assert len(second) < 120


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([9]),
        msgpack.packb([VERSION, "snapshots", 1]),
        msgpack.packb([VERSION, "snapshots", 1, 0.0, True, [["a"]], []]),
        encode(Ask(1, "dump")),
    ],
)
def test_bytes_that_are_no_delta_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        SnapshotDecoder().apply(data, 0.0)


def test_a_workflow_with_too_many_numbers_is_refused() -> None:
    engine = ["a", 1, 0.0, {"w": [1, 2, 3, 4]}, [], {}, [], 0, 0, 0, 1, False, 0.0, 0.0]
    with pytest.raises(MessageError, match="three numbers"):
        SnapshotDecoder().apply(msgpack.packb([VERSION, "snapshots", 1, 0.0, True, [engine], []]), 0.0)
