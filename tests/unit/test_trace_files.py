"""Trace files: what is written is read, while it is written too, and a damaged byte costs the record it is in."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor_actor import trace_record
from predictor_actor.base import MAX_NAME, AgentFacts, Call, Ending, WorkflowTrace
from predictor_actor.trace_frames import Damage, Frame, frame, split
from predictor_actor.trace_record import MAX_RECORD_BYTES, RecordError, decode, encode, header
from predictor_actor.trace_writer import make_room
from predictor_actor.traces import ReadResult, TraceError, TraceTail, TraceWriter, read_traces

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
tokens = st.integers(0, trace_record.MAX_TOKENS)
moments = st.floats(-1e10, 1e10)


@st.composite
def calls(draw: Any) -> Call:
    start, end = draw(st.none() | moments), draw(st.none() | moments)
    if start is not None and end is not None and end < start:
        start, end = end, start
    hidden = draw(st.none() | st.binary(min_size=1, max_size=20).map(lambda half: half * 2))
    return Call(draw(names), draw(tokens), draw(tokens), start, end, draw(st.none() | names), hidden)


facts = st.builds(AgentFacts, tokens, st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=4).map(tuple))
traces = st.builds(
    WorkflowTrace,
    names,
    st.lists(calls(), max_size=6).map(tuple),
    st.sampled_from(get_args(Ending)),
    moments,
    st.dictionaries(names, facts, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def small(number: int, agents: int = 3) -> WorkflowTrace:
    return WorkflowTrace(f"w{number}", tuple(Call(f"a{place}", number) for place in range(agents)))


def file_of(count: int) -> tuple[bytes, list[int]]:
    """A file's bytes, and where each frame of it ends, the header's first."""
    data, ends = b"", []
    for record in (header(), *[encode(small(number)) for number in range(count)]):
        data += frame(record)
        ends.append(len(data))
    return data, ends


def read_bytes(data: bytes, folder: Path) -> ReadResult:
    path = folder / "x-000001.msgpack"
    path.write_bytes(data)
    return read_traces([path])


def workflows(result: ReadResult) -> list[str]:
    return [trace.workflow for trace in result.traces]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "traces"


shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestRecords:
    @given(traces)
    def test_what_is_encoded_is_decoded(self, trace: WorkflowTrace) -> None:
        assert decode(encode(trace)) == trace

    @pytest.mark.parametrize(
        "call",
        [
            Call(""),
            Call("a" * (MAX_NAME + 1)),
            Call("\ud800"),
            Call(3),  # type: ignore[arg-type]
            Call("a", -1),
            Call("a", True),
            Call("a", 1 << 40),
            Call("a", 0, 1.5),  # type: ignore[arg-type]
            Call("a", start_s=math.nan),
            Call("a", end_s=math.inf),
            Call("a", start_s=2.0, end_s=1.0),
            Call("a", start_s="1"),  # type: ignore[arg-type]
            Call("a", tool=""),
            Call("a", hidden=b""),
            Call("a", hidden=b"odd"),
            Call("a", hidden=bytes(trace_record.MAX_HIDDEN_BYTES + 2)),
        ],
    )
    def test_a_call_with_a_bad_value_is_refused_by_writer_and_reader(self, call: Call, files: Path) -> None:
        trace = WorkflowTrace("w", (Call("a"), call))
        with TraceWriter(files, "t") as writer:
            assert not writer.write(trace)
            assert writer.write(small(1))
        assert (writer.written, writer.rejected) == (1, 1)
        assert writer.last_reason

        fields = msgpack.unpackb(encode(small(1)))
        fields[-1][1] = [getattr(call, name) for name in ("agent", "prompt_tokens", "output_tokens")]
        fields[-1][1] += [call.start_s, call.end_s, call.tool, call.hidden]
        with pytest.raises(RecordError):
            decode(msgpack.packb(fields, unicode_errors="surrogatepass"))

    @pytest.mark.parametrize(
        "change",
        [
            {"workflow": ""},
            {"ending": "maybe"},
            {"ending": ["final"]},
            {"started_at": math.nan},
            {"source": "s" * (MAX_NAME + 1)},
            {"agents": {"a": AgentFacts(-1)}},
            {"agents": {"a": AgentFacts(1, ("x",))}},  # type: ignore[arg-type]
            {"agents": {"a": AgentFacts(1, (1 << 64,))}},
            {"agents": {"a": AgentFacts(1, (1,) * (trace_record.MAX_ANCHOR_PIECES + 1))}},
            {"agents": {"": AgentFacts()}},
            {"calls": (Call("a"),) * (trace_record.MAX_CALLS + 1)},
            {"calls": (Call("a", hidden=bytes(1 << 15)),) * 520},
        ],
    )
    def test_a_trace_with_a_bad_value_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(RecordError):
            encode(replace(small(1), **change))

    @given(st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3) | st.binary(max_size=3), st.lists))
    def test_nested_garbage_is_refused(self, garbage: Any) -> None:
        fields = ["workflow", "w", "", "final", 0.0, {}, []]
        for place in range(1, 7):
            changed = [*fields[:place], [garbage], *fields[place + 1 :]]
            with pytest.raises(RecordError):
                decode(msgpack.packb(changed))

    @given(st.binary(max_size=60))
    def test_no_bytes_but_a_record_are_taken_for_one(self, data: bytes) -> None:
        with pytest.raises(RecordError):
            decode(data)


class TestFrames:
    @given(st.lists(st.binary(max_size=30), max_size=5), st.data())
    def test_pieces_of_any_size_give_the_same_frames(self, payloads: list[bytes], data: Any) -> None:
        stream = b"".join(map(frame, payloads))
        rest, found = b"", []
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            rest, stream = rest + stream[:cut], stream[cut:]
            frames, done = split(rest, 100)
            found += frames
            rest = rest[done:]
        assert not rest
        assert [one.payload for one in found if isinstance(one, Frame)] == payloads

    @given(st.binary(max_size=200))
    def test_every_byte_is_a_frame_or_damage_or_waits(self, data: bytes) -> None:
        found, done = split(data, 100)
        place = 0
        for one in found:
            assert one.offset == place
            place += one.length if isinstance(one, Damage) else len(frame(one.payload))
        assert place == done <= len(data)

    def test_a_length_that_promises_too_much_does_not_swallow_what_follows(self) -> None:
        first, second = frame(b"one" * 20), frame(b"two")
        long = first[:4] + (90).to_bytes(4, "little") + first[8:]
        found, done = split(long + second, 100)
        assert found == [Damage(0, len(long)), Frame(len(long), b"two")]
        assert done == len(long + second)


class TestReading:
    @shared_folder
    @given(st.lists(traces, max_size=5))
    def test_what_is_written_is_read(self, tmp_path_factory: Any, written: list[WorkflowTrace]) -> None:
        folder = tmp_path_factory.mktemp("traces")
        with TraceWriter(folder, "t") as writer:
            assert all(map(writer.write, written))
        assert read_traces([folder]) == ReadResult(written)

    def test_a_file_cut_at_any_byte_gives_the_records_before_the_cut(self, tmp_path: Path) -> None:
        data, ends = file_of(3)
        for cut in range(len(data) + 1):
            whole = sum(end <= cut for end in ends)
            result = read_bytes(data[:cut], tmp_path)
            assert workflows(result) == [f"w{number}" for number in range(whole - 1)]
            assert (result.bad, result.unfinished) == (0, int(cut not in (0, *ends)))

    @shared_folder
    @given(st.data())
    def test_a_flipped_bit_costs_the_record_it_is_in_and_no_other(self, tmp_path: Path, data: Any) -> None:
        good, ends = file_of(4)
        place, bit = data.draw(st.integers(0, ends[-2] - 1)), data.draw(st.integers(0, 7))
        bytes_ = bytearray(good)
        bytes_[place] ^= 1 << bit
        hit = sum(end <= place for end in ends)
        result = read_bytes(bytes(bytes_), tmp_path)
        assert workflows(result) == [f"w{number}" for number in range(4) if number != hit - 1]
        assert (result.bad, result.unfinished) == (1, 0)
        assert "damaged" in str(result.problems[0])

    @shared_folder
    @given(st.binary(max_size=40), st.integers(0, 4))
    def test_bytes_put_between_records_cost_none(self, tmp_path: Path, garbage: bytes, after: int) -> None:
        good, ends = file_of(4)
        cut = ends[after]
        result = read_bytes(good[:cut] + garbage + good[cut:], tmp_path)
        assert workflows(result) == [f"w{number}" for number in range(4)]

    @shared_folder
    @given(st.binary(max_size=300))
    def test_no_bytes_make_the_reader_fail(self, tmp_path: Path, data: bytes) -> None:
        assert read_bytes(data, tmp_path).traces == []

    def test_an_undamaged_frame_that_is_no_trace_is_counted(self, tmp_path: Path) -> None:
        records = [header(), b"", b"\xc1", msgpack.packb([1, [2, {"x": []}]]), encode(small(0))]
        result = read_bytes(b"".join(map(frame, records)), tmp_path)
        assert (workflows(result), result.bad) == (["w0"], 3)

    def test_only_the_first_problems_are_told(self, tmp_path: Path) -> None:
        result = read_bytes(frame(header()) + frame(b"") * 50, tmp_path)
        assert (result.bad, len(result.problems)) == (50, 20)

    @pytest.mark.parametrize("version", [[2], [], ["1"], [None, 1]])
    def test_another_version_is_refused_by_name(self, tmp_path: Path, version: list[Any]) -> None:
        other = msgpack.packb(["forecache-traces", *version])
        with pytest.raises(TraceError, match=r"x-000001.msgpack is of version .*; this build reads 1"):
            read_bytes(frame(other) + frame(encode(small(0))), tmp_path)

    def test_a_record_larger_than_what_is_read_at_once_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("predictor_actor.trace_reader._CHUNK_BYTES", 7)
        data, _ = file_of(5)
        seen: list[tuple[int, int]] = []
        path = tmp_path / "x.msgpack"
        path.write_bytes(data)
        result = read_traces([path], progress=lambda *at: seen.append(at))
        assert len(result.traces) == 5
        assert seen[-1] == (len(data), len(data))

    @pytest.mark.parametrize(
        ("name", "says"),
        [("absent", "No such"), ("x.txt", "ends in .msgpack or .jsonl"), ("absent.jsonl", "No such")],
    )
    def test_a_path_that_cannot_be_read_is_named(self, tmp_path: Path, name: str, says: str) -> None:
        (tmp_path / "x.txt").touch()
        with pytest.raises(TraceError, match=says):
            read_traces([tmp_path / name])


class TestWriter:
    def test_a_full_file_is_followed_by_another(self, files: Path) -> None:
        most = 3 * len(frame(encode(small(10))))
        with TraceWriter(files, "t", max_file_bytes=most) as writer:
            for number in range(10, 20):
                writer.write(small(number))
        sizes = [path.stat().st_size for path in sorted(files.iterdir())]
        assert len(sizes) == 5
        assert max(sizes) <= most
        assert workflows(read_traces([files])) == [f"w{number}" for number in range(10, 20)]

    def test_the_oldest_files_of_a_full_folder_go_and_nothing_else_does(self, files: Path) -> None:
        one = len(frame(header())) + len(frame(encode(small(100))))
        files.mkdir()
        (files / "mine.msgpack").write_bytes(bytes(1000))
        with TraceWriter(files, "t", one, 3 * one) as writer:
            for number in range(100, 110):
                writer.write(small(number))
                newest = files / f"t-{number - 99:06d}.msgpack"
                os.utime(newest, (number, number))
        assert sorted(path.name for path in files.iterdir()) == [
            "mine.msgpack",
            *[f"t-{number:06d}.msgpack" for number in (8, 9, 10)],
        ]

    def test_writers_of_one_name_never_share_a_file(self, files: Path) -> None:
        with TraceWriter(files, "t") as one, TraceWriter(files, "t") as other:
            for number in range(3):
                one.write(small(2 * number))
                other.write(small(2 * number + 1))
        assert workflows(read_traces([files])) == ["w0", "w2", "w4", "w1", "w3", "w5"]

    def test_a_new_writer_leaves_the_cut_off_file_of_a_dead_one(self, files: Path) -> None:
        with TraceWriter(files, "t") as dead:
            dead.write(small(0))
            dead.write(small(1))
        first = files / "t-000001.msgpack"
        first.write_bytes(first.read_bytes()[:-1])
        with TraceWriter(files, "t") as writer:
            writer.write(small(2))
        result = read_traces([files])
        assert (workflows(result), result.bad, result.unfinished) == (["w0", "w2"], 0, 1)

    def test_a_file_deleted_under_its_writer_is_followed_by_another(self, files: Path) -> None:
        with TraceWriter(files, "t") as writer:
            writer.write(small(0))
            make_room(files, 0)
            writer.write(small(1))
            assert workflows(read_traces([files])) == ["w1"]

    def test_after_a_failed_write_a_new_file_begins(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with TraceWriter(files, "t") as writer:
            writer.write(small(0))
            monkeypatch.setattr(writer, "_append", full_disk)
            with pytest.raises(OSError, match="full"):
                writer.write(small(1))
            monkeypatch.undo()
            writer.write(small(2))
        result = read_traces([files])
        assert (workflows(result), result.bad, result.unfinished) == (["w0", "w2"], 0, 1)

    @pytest.mark.parametrize("name", ["", "a/b", "é", "n" * 101])
    def test_a_name_that_is_no_file_name_is_refused(self, files: Path, name: str) -> None:
        with pytest.raises(ValueError, match="letters"):
            TraceWriter(files, name)

    def test_limits_that_cannot_be_kept_are_refused(self, files: Path) -> None:
        with pytest.raises(ValueError, match="max_file_bytes is 0"):
            TraceWriter(files, "t", 0)
        with pytest.raises(ValueError, match="less than"):
            TraceWriter(files, "t", 10, 9)


def full_disk(file: FileIO, data: bytes) -> None:
    """Takes five bytes more."""
    file.write(data[:5])
    raise OSError("full")


class TestTail:
    def test_each_trace_of_several_writers_is_given_once(self, files: Path) -> None:
        tail = TraceTail(files)
        assert tail.read() == ReadResult()
        with TraceWriter(files, "a", 200) as one, TraceWriter(files, "b") as other:
            seen = []
            for number in range(6):
                one.write(small(number))
                other.write(small(number + 10))
                seen += workflows(tail.read())
                assert tail.read() == ReadResult()
        assert sorted(seen) == sorted(f"w{number}" for number in (*range(6), *range(10, 16)))

    def test_a_record_that_grows_byte_by_byte_is_given_when_it_is_whole(self, files: Path) -> None:
        data, ends = file_of(3)
        files.mkdir()
        path, tail = files / "t-000001.msgpack", TraceTail(files)
        for cut in range(len(data) + 1):
            path.write_bytes(b"")
            with path.open("r+b") as file:
                file.write(data[:cut])
            result = tail.read()
            given = [f"w{number}" for number, end in enumerate(ends[1:]) if end == cut]
            assert (workflows(result), result.bad) == (given, 0)
            assert result.unfinished == int(cut not in (0, *ends))

    def test_what_follows_a_record_that_was_never_finished_is_given(self, files: Path) -> None:
        data, ends = file_of(2)
        files.mkdir()
        path, tail = files / "t-000001.msgpack", TraceTail(files)
        path.write_bytes(data[: ends[1] - 3])
        assert workflows(tail.read()) == []
        path.write_bytes(data[: ends[1] - 3] + data[ends[1] :])
        result = tail.read()
        assert (workflows(result), result.bad, result.unfinished) == (["w1"], 1, 0)

    def test_a_deleted_file_is_forgotten_and_one_in_its_place_is_new(self, files: Path) -> None:
        tail = TraceTail(files)
        for number in range(3):
            with TraceWriter(files, "t") as writer:
                writer.write(small(number))
            assert workflows(tail.read()) == [f"w{number}"]
            make_room(files, 0)
            if number:
                assert workflows(tail.read()) == []

    def test_one_read_takes_no_more_than_about_its_limit(self, files: Path) -> None:
        for name in "abc":
            with TraceWriter(files, name) as writer:
                writer.write(small(ord(name)))
        tail = TraceTail(files, most_bytes=1)
        assert [workflows(tail.read()) for _ in range(4)] == [["w97"], ["w98"], ["w99"], []]

    def test_a_file_of_another_version_is_counted_once_and_the_others_are_read(self, files: Path) -> None:
        files.mkdir()
        (files / "a-000001.msgpack").write_bytes(frame(msgpack.packb(["forecache-traces", 9])))
        with TraceWriter(files, "t") as writer:
            writer.write(small(0))
            tail = TraceTail(files)
            result = tail.read()
            assert (workflows(result), result.bad) == (["w0"], 1)
            assert "version 9" in str(result.problems[0])
            assert tail.read() == ReadResult()

    def test_what_cannot_be_opened_is_counted(self, files: Path) -> None:
        (files / "a.msgpack").mkdir(parents=True)
        with TraceWriter(files, "t") as writer:
            writer.write(small(0))
        result = TraceTail(files).read()
        assert (workflows(result), result.bad) == (["w0"], 1)
        assert TraceTail(files / "t-000001.msgpack").read().bad == 1


def test_a_record_at_its_limit_is_whole(tmp_path: Path) -> None:
    """A tail that reads chunks smaller than a record comes to its end."""
    calls = (Call("a", hidden=bytes(1 << 15)),) * 500
    with TraceWriter(tmp_path, "t") as writer:
        assert writer.write(WorkflowTrace("big", calls))
        assert writer.write(small(1))
    assert 15 << 20 < (tmp_path / "t-000001.msgpack").stat().st_size <= MAX_RECORD_BYTES
    tail = TraceTail(tmp_path, most_bytes=1 << 20)
    assert workflows(tail.read()) + workflows(tail.read()) == ["big", "w1"]
