"""What a benchmark writes down while it runs, one JSON line each, and how it is read again.

A run that is interrupted keeps every round that had finished: a round counts from the moment its `RoundRecord` is
written, and the calls of a round without one are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

RECORDS_SCHEMA = 1
Value = str | int | float | bool | None
RoundKey = tuple[str, str, int]


class RecordsError(ValueError):
    """A file of records that cannot be read or continued: says which, where and what to do."""


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One point of a sweep: what was varied (workload, concurrency, device_tokens, host_tokens, noise …)."""

    key: str
    values: Mapping[str, Value]

    @classmethod
    def of(cls, **values: Value) -> Self:
        """A point whose key is made of its values, in their order."""
        return cls(",".join(f"{name}={value}" for name, value in values.items()), values)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of one workflow. Times are seconds on the run's clock, counts are tokens.

    Attributes:
        point: key of the sweep's point.
        round: rounds of different policies with the same number use the same seed, hence the same workflows.
        index: the call's place in its workflow.
        first_token_s: None if no token came.
        pause_s: how long the workflow's tools took after this call.
        error: why the call failed; None if it did not.
        engine: that answered; "" if it was not told.
        route: why the call went to that engine, in the words of `serving.routing.Why`.
    """

    point: str
    policy: str
    round: int
    workflow: str
    index: int
    agent: str
    sent_s: float
    first_token_s: float | None
    end_s: float
    prompt_tokens: int = 0
    hit_device: int = 0
    hit_host: int = 0
    output_tokens: int = 0
    pause_s: float = 0.0
    error: str | None = None
    engine: str = ""
    route: str = ""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One finished round of one policy at one point.

    Attributes:
        seconds: how long it took.
        counters: tokens the engines counted in this round: `prompt`, `hit_device`, `hit_host`, `computed`, `regret`,
            `evicted_device_<why>`, `evicted_host_<why>`, `prefetch_loaded`, `prefetch_used`, `prefetch_late`,
            `prefetch_wasted`, and `active_evictions_by_prefetch` (evictions). What nobody counted is absent, not 0.
        policy_cpu_s: processor time the policy itself took, None if not measured.
        timeline: samples of one engine's pools, each with `at_s` (seconds since the round began) and, in tokens,
            `active`, `retired`, `prefetched`, `free` (they add up to the pool), `running` (the part of `active` that
            running calls hold and nobody can evict), `host_active`, `host_retired` …; where workflows may have to
            wait, in workflows, `admitted`, `held` and `limit`.
        engines: that were there, those without a call included.
    """

    point: str
    policy: str
    round: int
    seconds: float
    counters: Mapping[str, int] = field(default_factory=dict)
    policy_cpu_s: float | None = None
    timeline: list[dict[str, float]] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Records:
    """A file of records, read: the points in their order, and the finished rounds with their calls."""

    points: dict[str, PointSpec]
    rounds: dict[RoundKey, tuple[RoundRecord, list[CallRecord]]]

    def policies(self, point: str) -> list[str]:
        """The policies with a finished round at a point, in the order they first finished one."""
        return list(dict.fromkeys(key[1] for key in self.rounds if key[0] == point))

    def of(self, point: str, policy: str) -> list[tuple[RoundRecord, list[CallRecord]]]:
        """The finished rounds of one policy at one point, by number."""
        return [self.rounds[key] for key in sorted(self.rounds) if key[:2] == (point, policy)]


class RecordWriter:
    """Appends records to a file, each line flushed as it is written; a context manager.

    Opening a file that exists continues it. A last line that was cut off is removed first.

    Raises:
        RecordsError: the file holds something else than records of this schema.
    """

    def __init__(self, path: Path) -> None:
        whole = b""
        if path.exists():
            read_records(path)
            whole = _whole_lines(path.read_bytes())
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._file.truncate(0 if not whole else min(len(whole), path.stat().st_size))
        if not whole:
            self._write("header", {"schema": RECORDS_SCHEMA})
        elif len(whole) > path.stat().st_size:
            self._file.write(b"\n")

    def point(self, point: PointSpec) -> None:
        self._write("point", {"key": point.key, "values": dict(point.values)})

    def begin_round(self, point: str, policy: str, number: int) -> None:
        """Forget what an interrupted attempt at the same round wrote; the calls that follow are a new attempt."""
        self._write("begin", {"point": point, "policy": policy, "round": number})

    def call(self, call: CallRecord) -> None:
        self._write("call", asdict(call))

    def end_round(self, record: RoundRecord) -> None:
        """The round is finished: from now on it and its calls count."""
        self._write("round", asdict(record))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, kind: str, what: dict[str, Any]) -> None:
        self._file.write(orjson.dumps({"kind": kind, **what}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        self._file.flush()


def read_records(path: Path) -> Records:
    """Read a file of records; a last line that was cut off is ignored.

    Raises:
        RecordsError: a line in the middle is broken, or the file is not one of records of this schema.
        FileNotFoundError: there is no such file.
    """
    points: dict[str, PointSpec] = {}
    rounds: dict[RoundKey, tuple[RoundRecord, list[CallRecord]]] = {}
    pending: dict[RoundKey, list[CallRecord]] = {}
    for number, line in enumerate(_whole_lines(path.read_bytes()).splitlines(), 1):
        try:
            what = orjson.loads(line)
            kind = what.pop("kind")
            if number == 1 and (kind, what.get("schema")) != ("header", RECORDS_SCHEMA):
                raise RecordsError(
                    f"{path}: not records of schema {RECORDS_SCHEMA} (it begins with {line[:80]!r}); "
                    "give a file that this version of Forecache wrote, or run the benchmark again"
                )
            match kind:
                case "point":
                    points[what["key"]] = PointSpec(**what)
                case "begin":
                    pending[_key(what)] = []
                case "call":
                    pending.setdefault(_key(what), []).append(CallRecord(**what))
                case "round":
                    rounds[_key(what)] = (RoundRecord(**what), pending.pop(_key(what), []))
                case "header":
                    pass
                case _:
                    raise KeyError(f"unknown kind {kind!r}")
        except RecordsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordsError(
                f"{path}, line {number}: not a record ({error}); remove the line to use the rest of the file"
            ) from error
    return Records(points, rounds)


def _key(what: dict[str, Any]) -> RoundKey:
    return what["point"], what["policy"], what["round"]


def _whole_lines(data: bytes) -> bytes:
    """The lines that were written to their end. A last line that lacks nothing but its line break is whole."""
    body, line_break, tail = data.rpartition(b"\n")
    try:
        orjson.loads(tail)
    except orjson.JSONDecodeError:
        return body + line_break
    return data + b"\n"
