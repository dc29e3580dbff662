"""The benchmark's records: what is written is read again, and an interrupted run keeps what had finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.records import CallRecord, PointSpec, RecordsError, RecordWriter, RoundRecord, read_records

POINT = PointSpec.of(workload="chatdev", concurrency=16)


def call(number: int, round_: int = 0, workflow: str = "w") -> CallRecord:
    return CallRecord(
        POINT.key, "lru", round_, workflow, number, "coder", number, number + 0.5, number + 1.0, 100, 40, 10
    )


def write(path: Path, rounds: int = 2) -> None:
    with RecordWriter(path) as writer:
        writer.point(POINT)
        for number in range(rounds):
            writer.begin_round(POINT.key, "lru", number)
            writer.call(call(0, number))
            writer.call(call(1, number))
            writer.end_round(
                RoundRecord(POINT.key, "lru", number, 3.5, {"prompt": 200}, 0.1, [{"at_s": 0.0, "free": 9}])
            )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "records.jsonl"


def test_what_is_written_is_read_again(path: Path) -> None:
    write(path)
    records = read_records(path)
    assert records.points == {POINT.key: POINT}
    assert POINT.key == "workload=chatdev,concurrency=16"
    assert records.policies(POINT.key) == ["lru"]
    (first, calls), (second, _) = records.of(POINT.key, "lru")
    assert calls == [call(0), call(1)]
    assert (first.round, second.round) == (0, 1)
    assert first.timeline == [{"at_s": 0.0, "free": 9}]


def test_calls_of_an_unfinished_round_are_left_out(path: Path) -> None:
    write(path)
    with RecordWriter(path) as writer:
        writer.begin_round(POINT.key, "lru", 2)
        writer.call(call(0, 2))
    assert [record.round for record, _ in read_records(path).of(POINT.key, "lru")] == [0, 1]


def test_a_round_that_is_run_again_forgets_the_interrupted_attempt(path: Path) -> None:
    with RecordWriter(path) as writer:
        writer.begin_round(POINT.key, "lru", 0)
        writer.call(call(7))
    with RecordWriter(path) as writer:
        writer.begin_round(POINT.key, "lru", 0)
        writer.call(call(1))
        writer.end_round(RoundRecord(POINT.key, "lru", 0, 1.0))
    assert read_records(path).of(POINT.key, "lru")[0][1] == [call(1)]


def _round_ends(data: bytes) -> list[int]:
    """Where the lines of finished rounds end, without their line breaks."""
    ends, at = [], 0
    for line in data.splitlines(keepends=True):
        at += len(line)
        if b'"kind":"round"' in line:
            ends.append(at - 1)
    return ends


@given(cut=st.integers(0, 2000))
def test_a_file_cut_anywhere_is_read_and_can_be_continued(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "records.jsonl"
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    before = len(read_records(path).rounds)
    assert before == sum(1 for end in _round_ends(data) if end <= cut)
    with RecordWriter(path) as writer:
        writer.call(call(0, 9))
        writer.end_round(RoundRecord(POINT.key, "lru", 9, 1.0))
    records = read_records(path)
    assert len(records.rounds) == before + 1
    assert call(0, 9) in records.rounds[POINT.key, "lru", 9][1]


def test_a_broken_line_in_the_middle_says_where(path: Path) -> None:
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:20] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(RecordsError, match=r"records\.jsonl, line 4"):
        read_records(path)


@pytest.mark.parametrize("content", [b'{"kind":"header","schema":99}\n', b"[1]\n{}\n", b'{"kind":"call"}\n'])
def test_something_else_than_records_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RecordsError, match=r"records\.jsonl"):
        RecordWriter(path)
    assert path.read_bytes() == content
