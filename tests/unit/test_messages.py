"""The wire format: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import (
    MAX_MESSAGE_BYTES,
    VERSION,
    Beat,
    CallStarted,
    Message,
    MessageError,
    RequestIdentity,
    decode,
    encode,
    identity_fields,
    identity_from_fields,
)

COUNTS = st.integers(0, 2**63 - 1)
NAMES = st.text(max_size=200)
IDENTITIES = st.builds(
    RequestIdentity,
    workflow=NAMES,
    agent=NAMES,
    parent=st.none() | NAMES,
    final=st.booleans(),
    priority=st.none() | st.integers(-(2**63), 2**63 - 1),
    tenant=st.none() | NAMES,
    source=NAMES,
)
MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    Beat: st.builds(Beat, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(allow_nan=False)),
    CallStarted: st.builds(CallStarted, NAMES, COUNTS, st.none() | IDENTITIES),
}
ANY_MESSAGE = st.one_of(*MESSAGES.values())
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
BEAT = ["beat", 0, 1, 2, 3, 4, 5, 6.0]
IDENTITY: list[Any] = ["w", "a", None, False, None, None, "header"]
STARTED: list[Any] = ["call_started", "rid", 7, IDENTITY]


def wire(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(list(parts))
    return packed


def changed(parts: list[Any], index: int, value: Any) -> bytes:
    return wire(VERSION, *parts[:index], value, *parts[index + 1 :])


def started_with(index: int, value: Any) -> bytes:
    """A call whose identity has `value` at `index`."""
    identity = [*IDENTITY[:index], value, *IDENTITY[index + 1 :]]
    return wire(VERSION, *STARTED[:3], identity)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class TestRoundTrip:
    @pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
    @given(data=st.data())
    def test_what_goes_in_comes_out(self, kind: type[Message], data: st.DataObject) -> None:
        message = data.draw(MESSAGES[kind])
        decoded = decode(encode(message))
        assert decoded == message
        assert type(decoded) is kind

    def test_every_kind_of_message_is_covered(self) -> None:
        assert set(Message.__args__) == set(MESSAGES)

    @given(IDENTITIES)
    def test_an_identity_travels_as_a_list_of_its_fields(self, identity: RequestIdentity) -> None:
        fields = identity_fields(identity)
        assert len(fields) == len(dataclasses.fields(identity))
        assert identity_from_fields(fields) == identity

    def test_the_examples_of_this_file_are_valid(self) -> None:
        assert decode(wire(VERSION, *BEAT)) == Beat(0, 1, 2, 3, 4, 5, 6.0)
        assert decode(wire(VERSION, *STARTED)) == CallStarted("rid", 7, RequestIdentity("w", "a", source="header"))


MALFORMED = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "two messages": wire(VERSION, *BEAT) * 2,
    "no list": msgpack.packb({"version": VERSION}),
    "a number": msgpack.packb(VERSION),
    "empty list": wire(),
    "no kind": wire(VERSION),
    "later version": wire(VERSION + 1, *BEAT),
    "version as text": wire(str(VERSION), *BEAT),
    "version as bool": wire(True, *BEAT),
    "version as float": wire(float(VERSION), *BEAT),
    "version as list": wire([VERSION], *BEAT),
    "version too deep to print": wire(nested(900), *BEAT),
    "unknown kind": wire(VERSION, "plan", 1),
    "kind as number": wire(VERSION, 1, 1),
    "kind as list": wire(VERSION, ["beat"], 1),
    "kind as bytes": wire(VERSION, b"beat", *BEAT[1:]),
    "kind too deep to print": wire(VERSION, nested(900)),
    "missing field": wire(VERSION, *BEAT[:-1]),
    "further field": wire(VERSION, *BEAT, 6),
    "bool for int": changed(BEAT, 1, True),
    "float for int": changed(BEAT, 1, 1.0),
    "text for int": changed(BEAT, 1, "1"),
    "none for int": changed(BEAT, 1, None),
    "list for int": changed(BEAT, 1, [1]),
    "field too deep to print": changed(BEAT, 1, nested(900)),
    "timestamp for int": changed(BEAT, 1, msgpack.Timestamp(1)),
    "extension for int": changed(BEAT, 1, msgpack.ExtType(5, b"x")),
    "bytes for text": changed(STARTED, 1, b"rid"),
    "none for text": changed(STARTED, 1, None),
    "text for identity": changed(STARTED, 3, "w"),
    "false for identity": changed(STARTED, 3, False),
    "map for identity": changed(STARTED, 3, {"workflow": "w"}),
    "short identity": changed(STARTED, 3, IDENTITY[:-1]),
    "long identity": changed(STARTED, 3, [*IDENTITY, None]),
    "identity without workflow": started_with(0, None),
    "number for workflow": started_with(0, 1),
    "number for final": started_with(3, 1),
    "none for final": started_with(3, None),
    "bool for priority": started_with(4, True),
    "float for priority": started_with(4, 1.5),
    "identity in an identity": started_with(0, IDENTITY),
    "invalid utf-8": wire(VERSION, *STARTED).replace(b"rid", b"r\xffd"),
    "key that cannot be hashed": b"\x81\x90\x01",
    "number as key": msgpack.packb({1: 2}),
    "list too long for its bytes": b"\xdd\xff\xff\xff\xff",
    "deeper than msgpack goes": b"\x91" * 100_000,
}


class TestMalformed:
    @pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
    def test_it_is_a_message_error_of_bounded_length(self, data: bytes) -> None:
        with pytest.raises(MessageError) as caught:
            decode(data)
        assert len(str(caught.value)) < 500

    def test_too_large(self) -> None:
        with pytest.raises(MessageError, match="limit"):
            decode(b"\xc0" * (MAX_MESSAGE_BYTES + 1))

    def test_a_long_wrong_value_is_not_repeated_in_the_error(self) -> None:
        with pytest.raises(MessageError) as caught:
            decode(changed(BEAT, 1, "x" * 100_000))
        assert len(str(caught.value)) < 500

    @given(st.binary(max_size=300))
    def test_random_bytes(self, data: bytes) -> None:
        with pytest.raises(MessageError):
            decode(data)

    @given(ANY_MESSAGE, st.data())
    def test_truncated(self, message: Message, data: st.DataObject) -> None:
        whole = encode(message)
        with pytest.raises(MessageError):
            decode(whole[: data.draw(st.integers(0, len(whole) - 1))])

    @given(ANY_MESSAGE, st.data())
    def test_a_flipped_byte_gives_a_message_or_a_message_error(self, message: Message, data: st.DataObject) -> None:
        whole = bytearray(encode(message))
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(MessageError):
            assert type(decode(bytes(whole))) in MESSAGES

    @given(st.sampled_from(["beat", "call_started", "?"]), st.lists(VALUES, max_size=8))
    def test_random_fields_give_a_message_or_a_message_error(self, kind: str, fields: list[Any]) -> None:
        with contextlib.suppress(MessageError):
            message = decode(wire(VERSION, kind, *fields))
            assert decode(encode(message)) == message

    @given(VALUES)
    def test_an_identity_is_checked_by_itself_too(self, value: Any) -> None:
        for fields in (value, [value] * 7, ["w", "a", value, True, value, value, "s"]):
            with contextlib.suppress(MessageError):
                identity = identity_from_fields(fields)
                assert identity_from_fields(identity_fields(identity)) == identity

    def test_text_that_is_no_utf_8_is_refused_when_it_is_sent(self) -> None:
        with pytest.raises(UnicodeEncodeError):
            encode(CallStarted("\ud800", 1, None))
