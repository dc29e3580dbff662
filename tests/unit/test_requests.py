"""What crosses between coordinator and predictor: what is sent arrives, and nothing else is taken."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictor_workflows import retry_loops, trace_of

from predictor_actor.base import PATH_LIMIT, AgentFacts, Call, Forecasts, Prefix, prefixes_of
from predictor_actor.requests import (
    MAX_WORKFLOWS,
    Answer,
    Request,
    RequestError,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

NOTHING = np.zeros((0, 4), np.float32)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
seconds = st.none() | st.floats(0, 1e6, width=32)
calls = st.builds(Call, names, st.integers(0, 1 << 20), st.integers(0, 1 << 20), seconds, seconds)
paths = st.lists(calls, max_size=PATH_LIMIT + 3)
prefixes = st.builds(
    lambda path, workflow, hidden: dataclasses.replace(Prefix.of(path, workflow), hidden=hidden),
    paths,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.none() | st.binary(min_size=1, max_size=8).map(lambda half: half * 2),
)
facts = st.dictionaries(
    names,
    st.builds(
        AgentFacts, st.integers(0, 1000), st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=3).map(tuple)
    ),
    max_size=3,
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
REQUEST = Request(prefixes_of(retry_loops(1)[0]), retry_loops(2, seed=1), {"critic": AgentFacts(7, (1, 2))})
ANSWER = Answer(
    Forecasts(("a", "b"), np.tile(np.array([0.5, 0.25, 0.25], np.float32), (4, 3, 1)), "markov-5"), 1.5e9, 0.002
)


def same(one: Prefix, other: Prefix) -> bool:
    plain = ("length", "hidden", "workflow")
    return (
        list(one.agents) == list(other.agents)
        and np.array_equal(one.numbers, other.numbers, equal_nan=True)
        and all(getattr(one, field) == getattr(other, field) for field in plain)
    )


def with_field(data: bytes, place: int, value: object) -> bytes:
    fields = msgpack.unpackb(data)
    fields[place] = value
    changed: bytes = msgpack.packb(fields)
    return changed


class TestRequests:
    @given(st.lists(prefixes, max_size=4), st.lists(prefixes, max_size=4), facts)
    def test_what_is_sent_arrives(self, begun: list[Prefix], asked: list[Prefix], known: dict[str, AgentFacts]) -> None:
        arrived = decode_request(encode_request(Request(begun, [], known, asked)))
        for came, sent in ((arrived.begun, begun), (arrived.asked, asked)):
            assert len(came) == len(sent)
            assert all(same(one, other) for one, other in zip(came, sent, strict=True))
        assert arrived.facts == known

    def test_workflows_that_have_ended_arrive(self) -> None:
        assert decode_request(encode_request(REQUEST)).ended == REQUEST.ended

    def test_an_empty_path_and_one_of_ten_thousand_calls_arrive(self) -> None:
        long = Prefix.of(trace_of(["a", "b"] * 5000).calls, "long")
        empty, arrived = decode_request(encode_request(Request([Prefix([], NOTHING, 0), long], [], {}))).begun
        assert (empty.agents, empty.length) == ([], 0)
        assert arrived.length == 10_000
        assert same(arrived, long)

    def test_of_a_path_held_whole_what_predictors_look_at_is_sent(self) -> None:
        whole = Prefix(["a"] * 10_000, np.ones((10_000, 4), np.float32), 10_000)
        (arrived,) = decode_request(encode_request(Request([whole], [], {}))).begun
        assert len(arrived.agents) == PATH_LIMIT
        assert arrived.length == 10_000

    @pytest.mark.parametrize(
        "begun",
        [
            Prefix(["a"], NOTHING, 1),
            Prefix(["a"], np.full((1, 4), np.inf, np.float32), 1),
            Prefix(["a", "b"], np.ones((2, 4), np.float32), 1),
            Prefix([], NOTHING, 3),
            Prefix(["a"], np.ones((1, 4), np.float32), 1 << 40),
            Prefix(["a"], np.ones((1, 4), np.float32), 1 << 70),
            Prefix([""], np.ones((1, 4), np.float32), 1),
            Prefix(["a" * 300], np.ones((1, 4), np.float32), 1),
            Prefix(["\ud800"], np.ones((1, 4), np.float32), 1),
            Prefix(["a"], np.ones((1, 4), np.float32), 1, b"odd"),
            Prefix(["a"], np.ones((1, 4), np.float32), 1, None, "w" * 300),
        ],
    )
    def test_what_no_receiver_would_take_is_not_sent(self, begun: Prefix) -> None:
        with pytest.raises(RequestError):
            encode_request(Request([begun], [], {}))

    def test_too_many_at_once_are_told(self) -> None:
        empty = Prefix([], NOTHING, 0)
        with pytest.raises(RequestError, match=f"at most {MAX_WORKFLOWS}"):
            encode_request(Request([empty] * (MAX_WORKFLOWS + 1), [], {}))
        with pytest.raises(RequestError, match=f"at most {MAX_WORKFLOWS}"):
            encode_request(Request([], [trace_of([])] * (MAX_WORKFLOWS + 1), {}))

    @pytest.mark.parametrize(
        ("place", "value", "reason"),
        [
            (0, "forecache-traces", "begins with"),
            (1, 2, "version"),
            (1, True, "version"),
            (2, "answer", "request and 4 fields"),
            (3, [], "7 columns"),
            (4, [b"\x90"], "has ended"),
            (4, "none", "list of at most"),
            (5, {"a": [1]}, "facts"),
            (5, {"a": [1, [0.5]]}, "facts"),
            (5, {"": [1, []]}, "facts"),
        ],
    )
    def test_another_message_is_refused_with_the_reason(self, place: int, value: object, reason: str) -> None:
        with pytest.raises(RequestError, match=reason):
            decode_request(with_field(encode_request(REQUEST), place, value))

    def test_an_answer_is_no_request(self) -> None:
        with pytest.raises(RequestError, match="request and 4 fields"):
            decode_request(encode_answer(ANSWER))


class TestAnswers:
    def test_what_is_sent_arrives(self) -> None:
        arrived = decode_answer(encode_answer(ANSWER))
        assert arrived.forecasts.agents == ("a", "b")
        assert arrived.forecasts.model == "markov-5"
        assert np.array_equal(arrived.forecasts.steps, ANSWER.forecasts.steps)
        assert (arrived.made_at, arrived.seconds) == (1.5e9, 0.002)

    def test_no_workflows_and_no_agents_are_an_answer(self) -> None:
        nothing = Answer(Forecasts((), np.ones((0, 3, 1), np.float32), "uniform"), 0.0, 0.0)
        assert len(decode_answer(encode_answer(nothing)).forecasts) == 0

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.25, 0.9])
    def test_rows_that_are_no_distributions_are_neither_sent_nor_taken(self, wrong: float) -> None:
        steps = ANSWER.forecasts.steps.copy()
        steps[2, 1, 0] = wrong
        with pytest.raises(RequestError, match="distribution"):
            encode_answer(Answer(Forecasts(("a", "b"), steps, "m"), 0.0, 0.0))
        with pytest.raises(RequestError, match="distribution"):
            decode_answer(with_field(encode_answer(ANSWER), 5, steps.tobytes()))

    @pytest.mark.parametrize(
        ("place", "value"),
        [(3, ["a", "a"]), (3, ["a"]), (4, 5), (4, -1), (4, 1 << 40), (5, b""), (6, 7), (7, 1), (7, float("nan"))],
    )
    def test_fields_that_do_not_fit_are_refused(self, place: int, value: object) -> None:
        with pytest.raises(RequestError):
            decode_answer(with_field(encode_answer(ANSWER), place, value))


class TestMalformed:
    """Whatever arrives, it is a whole message or a RequestError."""

    @given(st.binary(max_size=200))
    def test_noise(self, data: bytes) -> None:
        for decode in (decode_request, decode_answer):
            with pytest.raises(RequestError):
                decode(data)

    @pytest.mark.parametrize(
        ("decode", "data"), [(decode_request, encode_request(REQUEST)), (decode_answer, encode_answer(ANSWER))]
    )
    @given(drawn=st.data())
    def test_a_message_with_a_field_or_a_column_replaced(self, decode: Any, data: bytes, drawn: st.DataObject) -> None:
        fields = msgpack.unpackb(data)
        place = drawn.draw(st.integers(0, len(fields) - 1))
        inner = fields[place]
        if isinstance(inner, list) and inner and drawn.draw(st.booleans()):
            inner[drawn.draw(st.integers(0, len(inner) - 1))] = drawn.draw(anything)
        else:
            fields[place] = drawn.draw(anything)
        _whole_or_refused(decode, msgpack.packb(fields))

    @pytest.mark.parametrize(
        ("decode", "data"), [(decode_request, encode_request(REQUEST)), (decode_answer, encode_answer(ANSWER))]
    )
    @given(drawn=st.data())
    def test_a_message_with_bytes_changed_or_cut_off(self, decode: Any, data: bytes, drawn: st.DataObject) -> None:
        changed = bytearray(data[: drawn.draw(st.integers(0, len(data)))])
        for place in drawn.draw(st.lists(st.integers(0, max(0, len(changed) - 1)), max_size=4)):
            if changed:
                changed[place] = drawn.draw(st.integers(0, 255))
        _whole_or_refused(decode, bytes(changed))


def _whole_or_refused(decode: Any, data: bytes) -> None:
    try:
        found = decode(data)
    except RequestError:
        return
    encode: Any = encode_request if isinstance(found, Request) else encode_answer
    assert encode(decode(encode(found))) == encode(found)
