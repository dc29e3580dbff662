"""Snapshots by way of deltas: the same at the other end, whatever was missed."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_of_engines import ENGINES, snapshot, snapshots

from cache_actor.codec import MessageError
from cache_actor.messages import VERSION, Ask, encode
from cache_actor.snapshot_deltas import SnapshotDecoder, SnapshotEncoder
from cache_actor.snapshots import EngineSnapshot, Resident

steps = st.lists(
    st.tuples(
        st.lists(snapshots(), max_size=4, unique_by=lambda one: one.engine),
        st.sets(st.sampled_from(ENGINES), max_size=1),
        st.booleans(),
    ),
    max_size=12,
)


class Receiver:
    """Holds what it has heard, and asks for the whole when it has to."""

    def __init__(self, encoder: SnapshotEncoder) -> None:
        self._encoder = encoder
        self._decoder = SnapshotDecoder()
        self.engines: dict[str, EngineSnapshot] = {}

    def hear(self, delta: bytes) -> None:
        heard = self._decoder.apply(delta) or self._decoder.apply(self._encoder.whole())
        assert heard is not None
        new, gone = heard
        for engine in gone:
            del self.engines[engine]
        self.engines |= {one.engine: one for one in new}


@given(steps)
def test_a_receiver_knows_what_was_told_though_it_misses_deltas(
    said: list[tuple[list[EngineSnapshot], set[str], bool]],
) -> None:
    encoder = SnapshotEncoder()
    receiver = Receiver(encoder)
    told: dict[str, EngineSnapshot] = {}
    for number, (new, gone, missed) in enumerate(said):
        numbered = [replace(one, version=number) for one in new]
        told = {engine: one for engine, one in told.items() if engine not in gone}
        told |= {one.engine: one for one in numbered}
        delta = encoder.delta(numbered, gone)
        if not missed:
            receiver.hear(delta)
            assert receiver.engines == told


def test_what_has_not_changed_is_not_sent() -> None:
    encoder = SnapshotEncoder()
    many = {f"workflow-{number}": Resident(1000 + number) for number in range(200)}
    first = encoder.delta([snapshot("a", 1, workflows=many)])
    second = encoder.delta([snapshot("a", 2, workflows=many | {"workflow-7": Resident(9)})])
    assert len(first) > 3000
    assert len(second) < 100


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([9]),
        msgpack.packb([VERSION, "snapshots", 1]),
        msgpack.packb([VERSION, "snapshots", 1, True, [["a"]], []]),
        encode(Ask(1, "dump")),
    ],
)
def test_bytes_that_are_no_delta_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        SnapshotDecoder().apply(data)


def test_a_workflow_with_too_many_numbers_is_refused() -> None:
    engine = ["a", 1, 0.0, {"w": [1, 2, 3, 4]}, [], {}, [], 0, 0, 0, 1, False]
    with pytest.raises(MessageError, match="three numbers"):
        SnapshotDecoder().apply(msgpack.packb([VERSION, "snapshots", 1, True, [engine], []]))
