"""Shares of the prompts that were hit, and how much of the way from LRU to Belady they are: one line a point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from serving.benchmark.records import CallRecord, Records

START, GOAL = "lru", "belady"
# A part of a smaller distance, in points, says nothing.
LEAST_DISTANCE = 2.0

Line = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class HitTable:
    """A title and the hits of each policy at each point, in percent, round by round.

    Raises:
        ValueError: there are not as many names as points.
    """

    title: str
    names: Sequence[str]
    lines: Sequence[Line]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.lines):
            raise ValueError(f"{self.title} has {len(self.lines)} points; give so many names, not {len(self.names)}")


def hit_table(records: Records, title: str, names: Sequence[str] | None = None) -> HitTable:
    """The table of a run's records.

    Args:
        names: of the points, in their order; by default their sizes.
    """
    points = [
        {policy: [_percent(calls) for _, calls in records.of(point, policy)] for policy in records.policies(point)}
        for point in records.points
    ]
    return HitTable(title, names or [_size(spec.values) for spec in records.points.values()], points)


def markdown(tables: Iterable[HitTable]) -> str:
    """The tables as one, with a line a point: the mean, the range if there are several rounds, the part of the way."""
    tables = list(tables)
    policies = list(dict.fromkeys(policy for table in tables for line in table.lines for policy in line))
    rows = [["workload, pool", *(f"`{policy}`" for policy in policies)], ["---"] * (len(policies) + 1)]
    for table in tables:
        for name, line in zip(table.names, table.lines, strict=True):
            rows.append([f"{table.title} {name}", *(cell(line, policy) for policy in policies)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(line: Line, policy: str) -> str:
    """What a policy has hit, as text."""
    if not (hits := line.get(policy)):
        return "–"
    text = f"{_mean(hits):.1f} %"
    if len(hits) > 1:
        text += f" [{min(hits):.1f}, {max(hits):.1f}]"
    part = way(line, policy)
    return text if part is None else f"{text} ({part:.2f})"


def way(line: Line, policy: str) -> float | None:
    """How much of the way from LRU to Belady a policy goes; None for these two, and where it is no way to speak of."""
    if policy in (START, GOAL) or not line.get(START) or not line.get(GOAL):
        return None
    start, distance = _mean(line[START]), _mean(line[GOAL]) - _mean(line[START])
    return (_mean(line[policy]) - start) / distance if distance >= LEAST_DISTANCE else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percent(calls: Iterable[CallRecord]) -> float:
    good = [call for call in calls if not call.error]
    prompt = sum(call.prompt_tokens for call in good)
    return 100 * sum(call.hit_device + call.hit_host for call in good) / prompt if prompt else 0.0


def _size(values: Mapping[str, object]) -> str:
    return " + ".join(f"{values[tier]:,}" for tier in ("device_tokens", "host_tokens") if values.get(tier))
