"""The wire format: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport, GateEvent, IdleWorkflow
from cache_actor.codec import MessageError
from cache_actor.messages import (
    MAX_MESSAGE_BYTES,
    VERSION,
    Anchor,
    Ask,
    Beat,
    CallEvent,
    CallsStarted,
    CallStarted,
    EnginePlan,
    EngineReport,
    Eviction,
    Message,
    PrefetchOrder,
    Receipt,
    RequestIdentity,
    SyncAnswer,
    SyncReport,
    Told,
    Work,
    WorkflowSeen,
    WorkflowsEnded,
    decode,
    encode,
    identity_fields,
    identity_from_fields,
)
from cache_actor.snapshot_messages import EngineDelta, SnapshotDelta, SnapshotsAsked

COUNTS = st.integers(0, 2**63 - 1)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
NAMES = st.text(max_size=200)
SHORT = st.text(max_size=20)
IDENTITIES = st.builds(
    RequestIdentity,
    workflow=NAMES,
    agent=NAMES,
    parent=st.none() | NAMES,
    final=st.booleans(),
    priority=st.none() | INTEGERS,
    tenant=st.none() | NAMES,
    source=NAMES,
)
CALLS = st.builds(CallStarted, NAMES, COUNTS, st.none() | IDENTITIES)
TABLES = st.dictionaries(SHORT, st.none() | st.dictionaries(SHORT, INTEGERS, max_size=4), max_size=4)
FIGURES = st.dictionaries(SHORT, COUNTS, max_size=4)
PARAMETERS = st.dictionaries(SHORT, st.booleans() | INTEGERS | FLOATS | SHORT, max_size=4)
ORDERS = st.builds(PrefetchOrder, COUNTS, SHORT, SHORT, INTEGERS, COUNTS)
RECEIPTS = st.builds(Receipt, COUNTS, SHORT, COUNTS, SHORT)
ANCHORS = st.builds(Anchor, SHORT, st.binary(max_size=12))
EVICTIONS = st.builds(Eviction, SHORT, SHORT, SHORT, COUNTS)
PLANS = st.builds(
    EnginePlan,
    plan=COUNTS,
    time_to_live_s=FLOATS,
    ends=st.lists(SHORT, max_size=4),
    tables=TABLES,
    prefetches=st.lists(ORDERS, max_size=4),
    policy=st.none() | SHORT,
    parameters=st.none() | PARAMETERS,
    prefetch=st.none() | SHORT,
    renew=st.booleans(),
    priorities=st.none() | st.dictionaries(SHORT, INTEGERS, max_size=4),
    warm_ups=st.none() | st.lists(ANCHORS, max_size=2),
)
RESIDENCY = st.dictionaries(SHORT, st.lists(COUNTS, max_size=3), max_size=3)
REPORTS = st.builds(
    EngineReport,
    COUNTS,
    st.booleans(),
    NAMES,
    st.lists(RECEIPTS, max_size=4),
    FIGURES,
    FIGURES,
    RESIDENCY,
    st.lists(EVICTIONS, max_size=3),
    COUNTS,
)
EVENTS = st.builds(
    CallEvent, SHORT, SHORT, st.booleans(), FLOATS, COUNTS, COUNTS, COUNTS, COUNTS, st.none() | SHORT, COUNTS
)
SEEN = st.builds(
    WorkflowSeen, SHORT, st.none() | SHORT, st.lists(SHORT, max_size=3), st.lists(FLOATS, max_size=6), COUNTS, COUNTS
)
WORK = st.builds(Work, FLOATS, FLOATS, FLOATS, COUNTS, COUNTS, st.none() | COUNTS, COUNTS, COUNTS)
GATE_EVENTS = st.builds(GateEvent, SHORT, SHORT, SHORT, FLOATS, FLOATS)
IDLE = st.builds(IdleWorkflow, SHORT, COUNTS, FLOATS, FLOATS)
DELTAS = st.builds(
    EngineDelta,
    SHORT,
    COUNTS,
    FLOATS,
    st.dictionaries(SHORT, st.lists(COUNTS, max_size=3), max_size=3),
    st.lists(SHORT, max_size=2),
    FIGURES,
    st.lists(SHORT, max_size=2),
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.booleans(),
    FLOATS,
    FLOATS,
)
MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    Beat: st.builds(Beat, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, FLOATS, COUNTS, WORK),
    CallsStarted: st.builds(CallsStarted, st.lists(CALLS, max_size=4)),
    EnginePlan: PLANS,
    EngineReport: REPORTS,
    SyncReport: st.builds(
        SyncReport,
        NAMES,
        COUNTS,
        COUNTS,
        COUNTS,
        st.lists(EVENTS, max_size=3),
        st.dictionaries(SHORT, SHORT, max_size=3),
        st.lists(SEEN, max_size=2),
        st.lists(REPORTS, max_size=2),
        st.lists(ANCHORS, max_size=2),
        st.dictionaries(SHORT, st.booleans(), max_size=2),
        COUNTS,
        COUNTS,
        COUNTS,
        WORK,
        COUNTS,
        st.booleans(),
    ),
    SyncAnswer: st.builds(SyncAnswer, COUNTS, st.booleans(), st.none() | PLANS, FLOATS),
    WorkflowsEnded: st.builds(WorkflowsEnded, st.lists(NAMES, max_size=4)),
    Ask: st.builds(Ask, COUNTS, NAMES),
    Told: st.builds(Told, COUNTS, NAMES),
    AdmissionReport: st.builds(
        AdmissionReport,
        NAMES,
        COUNTS,
        COUNTS,
        FIGURES,
        FIGURES,
        st.lists(NAMES, max_size=3),
        st.lists(GATE_EVENTS, max_size=3),
        SHORT | INTEGERS,
        FLOATS,
        SHORT,
        FLOATS,
    ),
    AdmissionAnswer: st.builds(
        AdmissionAnswer,
        st.dictionaries(SHORT, st.none() | COUNTS, max_size=3),
        st.lists(IDLE, max_size=3),
        SHORT | INTEGERS,
        FLOATS,
        SHORT,
        FLOATS,
    ),
    SnapshotsAsked: st.builds(SnapshotsAsked, INTEGERS),
    SnapshotDelta: st.builds(
        SnapshotDelta, COUNTS, FLOATS, st.booleans(), st.lists(DELTAS, max_size=2), st.lists(SHORT, max_size=2)
    ),
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
WORK_PARTS: list[Any] = [9.5, 1.5, 2.5, 70, 8, 30, 50, 4000, 9000]
BEAT: list[Any] = ["beat", 0, 1, 2, 3, 4, 5, 6.0, 7, WORK_PARTS]
IDENTITY: list[Any] = ["w", "a", None, False, None, None, "header"]
CALL: list[Any] = ["rid", 7, IDENTITY]
STARTED: list[Any] = ["calls_started", [CALL]]
ORDER: list[Any] = [5, "w", "a", 9, 300]
PLAN_FIELDS: list[Any] = [1, 2.0, ["old"], {"w": {"a": 3}, "v": None}, [ORDER], "lookahead", {"strict": True}, "off"]
PLAN: list[Any] = ["plan", *PLAN_FIELDS, True, {"w": 70}, [["a", b"1234"]]]
RECEIPT: list[Any] = [5, "clipped", 128, "no room"]
EVICTION: list[Any] = ["w", "device", "retired", 64]
REPORT: list[Any] = ["report", 1, True, "", [RECEIPT], {"prompt": 7}, {"free": 9}, {"w": [5, 6]}, [EVICTION], 1]
EVENT: list[Any] = ["w", "a", True, 1.5, 7, 2, 3, 1, None, 4]
SEEN_PARTS: list[Any] = ["w", None, ["a"], [7.0, 2.0, 0.5, 1.5], 1, 0]
SYNC: list[Any] = [
    "sync",
    "e",
    3,
    4,
    5,
    [EVENT],
    {"v": "final"},
    [SEEN_PARTS],
    [REPORT[1:]],
    [["a", b"1234"]],
    {"b": True},
    2,
    1,
    9,
    WORK_PARTS,
    800,
    True,
]
SYNC_ANSWER: list[Any] = ["sync_answer", 3, False, PLAN[1:], 2.5]
ENDED: list[Any] = ["ended", ["w", "v"]]
ASK: list[Any] = ["ask", 4, "dump"]
TOLD: list[Any] = ["told", 4, "{}"]
GATE_EVENT: list[Any] = ["w", "let_in", "e", 2.5, 1.5]
ADMISSION: list[Any] = ["admission", "i", 3, 4, {"e": 2}, {"e": 1, "": 5}, ["v"], [GATE_EVENT], 16, 2.5, "hash", 3.5]
IDLE_PARTS: list[Any] = ["w", 300, 1.5, 2.0]
ADMISSION_ANSWER: list[Any] = ["admission_answer", {"e": 2, "f": None}, [IDLE_PARTS], "off", 0.0, "", 0.0]
DELTA: list[Any] = ["e", 7, 2.5, {"w": [300, 20]}, ["v"], {"a": 90}, ["b"], 40, 2, 900, 4000, False, 0.25, 0.5]
SNAPSHOTS_ASKED: list[Any] = ["snapshots_asked", -1]
SNAPSHOTS: list[Any] = ["snapshots", 3, 2.75, True, [DELTA], ["f"]]
EXAMPLE_WORK = Work(9.5, 1.5, 2.5, 70, 8, 30, 50, 4000, 9000)
EXAMPLE_PLAN = EnginePlan(
    plan=1,
    time_to_live_s=2.0,
    ends=["old"],
    tables={"w": {"a": 3}, "v": None},
    prefetches=[PrefetchOrder(5, "w", "a", 9, 300)],
    policy="lookahead",
    parameters={"strict": True},
    prefetch="off",
    renew=True,
    priorities={"w": 70},
    warm_ups=[Anchor("a", b"1234")],
)
EXAMPLE_REPORT = EngineReport(
    plan=1,
    accepted=True,
    reason="",
    receipts=[Receipt(5, "clipped", 128, "no room")],
    counters={"prompt": 7},
    pools={"free": 9},
    residency={"w": [5, 6]},
    evictions=[Eviction("w", "device", "retired", 64)],
    applied=1,
)
EXAMPLES: list[tuple[list[Any], Message]] = [
    (BEAT, Beat(0, 1, 2, 3, 4, 5, 6.0, 7, EXAMPLE_WORK)),
    (STARTED, CallsStarted([CallStarted("rid", 7, RequestIdentity("w", "a", source="header"))])),
    (PLAN, EXAMPLE_PLAN),
    (REPORT, EXAMPLE_REPORT),
    (
        SYNC,
        SyncReport(
            engine="e",
            epoch=3,
            number=4,
            applied_plan=5,
            events=[CallEvent("w", "a", True, 1.5, 7, 2, 3, 1, None, 4)],
            ended={"v": "final"},
            seen=[WorkflowSeen("w", None, ["a"], [7.0, 2.0, 0.5, 1.5], 1, 0)],
            cache=[EXAMPLE_REPORT],
            anchors=[Anchor("a", b"1234")],
            warmed={"b": True},
            running=2,
            waiting=1,
            pressure=9,
            work=EXAMPLE_WORK,
            pending_tokens=800,
            draining=True,
        ),
    ),
    (SYNC_ANSWER, SyncAnswer(3, False, EXAMPLE_PLAN, 2.5)),
    (ENDED, WorkflowsEnded(["w", "v"])),
    (ASK, Ask(4, "dump")),
    (TOLD, Told(4, "{}")),
    (
        ADMISSION,
        AdmissionReport(
            "i", 3, 4, {"e": 2}, {"e": 1, "": 5}, ["v"], [GateEvent("w", "let_in", "e", 2.5, 1.5)], 16, 2.5, "hash", 3.5
        ),
    ),
    (ADMISSION_ANSWER, AdmissionAnswer({"e": 2, "f": None}, [IdleWorkflow("w", 300, 1.5, 2.0)], "off")),
    (SNAPSHOTS_ASKED, SnapshotsAsked(-1)),
    (
        SNAPSHOTS,
        SnapshotDelta(
            3,
            2.75,
            True,
            [EngineDelta("e", 7, 2.5, {"w": [300, 20]}, ["v"], {"a": 90}, ["b"], 40, 2, 900, 4000, False, 0.25, 0.5)],
            ["f"],
        ),
    ),
]


def wire(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(list(parts))
    return packed


def changed(parts: list[Any], index: int, value: Any) -> bytes:
    return wire(VERSION, *parts[:index], value, *parts[index + 1 :])


def call_with(index: int, value: Any) -> bytes:
    """A started call that has `value` at `index`."""
    return wire(VERSION, "calls_started", [[*CALL[:index], value, *CALL[index + 1 :]]])


def started_with(index: int, value: Any) -> bytes:
    """A call whose identity has `value` at `index`."""
    identity = [*IDENTITY[:index], value, *IDENTITY[index + 1 :]]
    return call_with(2, identity)


def mutated(source: random.Random, data: bytes) -> bytes:
    """`data` with one to four bytes changed, put in or left out."""
    changed_data = bytearray(data)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(changed_data)) if changed_data else 0
        match source.choice(["flip", "insert", "delete"]):
            case "flip" if changed_data:
                changed_data[place] ^= source.randint(1, 255)
            case "delete" if changed_data:
                del changed_data[place]
            case _:
                changed_data.insert(place, source.randrange(256))
    return bytes(changed_data)


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
        assert {type(message) for _, message in EXAMPLES} == set(MESSAGES)
        for parts, message in EXAMPLES:
            assert decode(wire(VERSION, *parts)) == message
            assert encode(message) == wire(VERSION, *parts)

    @pytest.mark.parametrize("value", [True, 1, 1.0, "1"], ids=lambda value: type(value).__name__)
    def test_a_parameter_keeps_its_type(self, value: bool | int | float | str) -> None:
        plan = decode(changed(PLAN, 7, {"p": value}))
        assert isinstance(plan, EnginePlan)
        assert plan.parameters is not None
        assert type(plan.parameters["p"]) is type(value)


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
    "unknown kind": wire(VERSION, "blueprint", 1),
    "a part of a message as a message": wire(VERSION, "order", *ORDER),
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
    "bytes for text": call_with(0, b"rid"),
    "none for text": call_with(0, None),
    "text for identity": call_with(2, "w"),
    "false for identity": call_with(2, False),
    "map for identity": call_with(2, {"workflow": "w"}),
    "short identity": call_with(2, IDENTITY[:-1]),
    "long identity": call_with(2, [*IDENTITY, None]),
    "identity without workflow": started_with(0, None),
    "number for workflow": started_with(0, 1),
    "number for final": started_with(3, 1),
    "none for final": started_with(3, None),
    "bool for priority": started_with(4, True),
    "float for priority": started_with(4, 1.5),
    "identity in an identity": started_with(0, IDENTITY),
    "plan without orders": wire(VERSION, *PLAN[:5]),
    "int for time to live": changed(PLAN, 2, 2),
    "none for ends": changed(PLAN, 3, None),
    "text for ends": changed(PLAN, 3, "old"),
    "map for ends": changed(PLAN, 3, {"old": 1}),
    "number among ends": changed(PLAN, 3, ["old", 1]),
    "list among ends": changed(PLAN, 3, [["old"]]),
    "none for tables": changed(PLAN, 4, None),
    "list for tables": changed(PLAN, 4, [["w", {"a": 3}]]),
    "list for a table": changed(PLAN, 4, {"w": [3]}),
    "false for a table": changed(PLAN, 4, {"w": False}),
    "number for a table": changed(PLAN, 4, {"w": 3}),
    "bool for a value": changed(PLAN, 4, {"w": {"a": True}}),
    "float for a value": changed(PLAN, 4, {"w": {"a": 0.5}}),
    "none for a value": changed(PLAN, 4, {"w": {"a": None}}),
    "map for a value": changed(PLAN, 4, {"w": {"a": {}}}),
    "number as workflow": changed(PLAN, 4, {1: {"a": 3}}),
    "bytes as workflow": changed(PLAN, 4, {b"w": {"a": 3}}),
    "none as agent": changed(PLAN, 4, {"w": {None: 3}}),
    "bytes as agent": changed(PLAN, 4, {"w": {b"a": 3}}),
    "none for orders": changed(PLAN, 5, None),
    "one order for orders": changed(PLAN, 5, ORDER),
    "none among orders": changed(PLAN, 5, [ORDER, None]),
    "short order": changed(PLAN, 5, [ORDER[:-1]]),
    "long order": changed(PLAN, 5, [[*ORDER, 0]]),
    "map for an order": changed(PLAN, 5, [{"order": 5}]),
    "bool for an order's number": changed(PLAN, 5, [[True, *ORDER[1:]]]),
    "float for an order's tokens": changed(PLAN, 5, [[*ORDER[:4], 300.0]]),
    "orders nested too deep": changed(PLAN, 5, nested(900)),
    "number for policy": changed(PLAN, 6, 1),
    "list for parameters": changed(PLAN, 7, ["strict", True]),
    "none for a parameter": changed(PLAN, 7, {"strict": None}),
    "list for a parameter": changed(PLAN, 7, {"strict": [True]}),
    "bytes as parameter": changed(PLAN, 7, {b"strict": True}),
    "bool for prefetch": changed(PLAN, 8, False),
    "number for renew": changed(PLAN, 9, 1),
    "list for priorities": changed(PLAN, 10, ["w", 70]),
    "float for a priority": changed(PLAN, 10, {"w": 0.5}),
    "text for an anchor's ids": changed(PLAN, 11, [["a", "1234"]]),
    "number for whether a warm-up was done": changed(SYNC, 10, {"b": 1}),
    "number for accepted": changed(REPORT, 2, 1),
    "number for residency": changed(REPORT, 7, {"w": 5}),
    "float in residency": changed(REPORT, 7, {"w": [5, 6.0]}),
    "short eviction": changed(REPORT, 8, [EVICTION[:-1]]),
    "text for epoch": changed(SYNC, 2, "3"),
    "plan among events": changed(SYNC, 5, [PLAN_FIELDS]),
    "number for how a workflow ended": changed(SYNC, 6, {"v": 1}),
    "integer among a path's numbers": changed(SYNC, 7, [[*SEEN_PARTS[:3], [7], *SEEN_PARTS[4:]]]),
    "none among engine reports": changed(SYNC, 8, [None]),
    "integer for seconds of work": changed(BEAT, 9, [1, *WORK_PARTS[1:]]),
    "text for regret": changed(SYNC, 14, [*WORK_PARTS[:5], "30", *WORK_PARTS[6:]]),
    "none for how many are in": changed(ADMISSION, 4, {"e": None}),
    "short event of a gate": changed(ADMISSION, 7, [GATE_EVENT[:-1]]),
    "bool for a mode": changed(ADMISSION, 8, True),
    "float for a mode": changed(ADMISSION_ANSWER, 3, 1.0),
    "float for a limit": changed(ADMISSION_ANSWER, 1, {"e": 2.0}),
    "integer for a gap": changed(ADMISSION_ANSWER, 2, [["w", 300, 1, 2.0]]),
    "report for a plan": changed(SYNC_ANSWER, 3, REPORT[1:]),
    "none for reason": changed(REPORT, 3, None),
    "order for a receipt": changed(REPORT, 4, [ORDER]),
    "bool for a receipt's tokens": changed(REPORT, 4, [[5, "clipped", True, ""]]),
    "text for receipts": changed(REPORT, 4, "none"),
    "none for counters": changed(REPORT, 5, None),
    "bool for a counter": changed(REPORT, 5, {"prompt": True}),
    "float for a pool": changed(REPORT, 6, {"free": 9.0}),
    "table for a pool": changed(REPORT, 6, {"free": {"a": 1}}),
    "text for ended workflows": changed(ENDED, 1, "w"),
    "none among ended workflows": changed(ENDED, 1, [None]),
    "ended workflows not in a list": wire(VERSION, *ENDED, "v"),
    "bool for a question's number": changed(ASK, 1, True),
    "none for a question": changed(ASK, 2, None),
    "map for an answer": changed(TOLD, 2, {}),
    "bytes for an answer": changed(TOLD, 2, b"{}"),
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

    def test_ten_thousand_mutated_messages_give_a_message_or_a_message_error(self) -> None:
        source = random.Random(20)
        valid = [wire(VERSION, *parts) for parts, _ in EXAMPLES]
        refused = 0
        for _ in range(10_000):
            data = mutated(source, source.choice(valid))
            refused += 1
            with contextlib.suppress(MessageError):
                message = decode(data)
                refused -= 1
                assert encode(decode(encode(message))) == encode(message)
        assert 1_000 < refused < 9_999

    @given(st.sampled_from([parts[0] for parts, _ in EXAMPLES] + ["?"]), st.lists(VALUES, max_size=8))
    def test_random_fields_give_a_message_or_a_message_error(self, kind: str, fields: list[Any]) -> None:
        with contextlib.suppress(MessageError):
            message = decode(wire(VERSION, kind, *fields))
            # As bytes, for a NaN is not equal to itself.
            assert encode(decode(encode(message))) == encode(message)

    @given(VALUES)
    def test_an_identity_is_checked_by_itself_too(self, value: Any) -> None:
        for fields in (value, [value] * 7, ["w", "a", value, True, value, value, "s"]):
            with contextlib.suppress(MessageError):
                identity = identity_from_fields(fields)
                assert identity_from_fields(identity_fields(identity)) == identity

    def test_text_that_is_no_utf_8_is_refused_when_it_is_sent(self) -> None:
        with pytest.raises(UnicodeEncodeError):
            encode(CallsStarted([CallStarted("\ud800", 1, None)]))
