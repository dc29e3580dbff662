"""A workload that changes half-way: the workflows of one, then those of another."""

from __future__ import annotations

from dataclasses import dataclass

from serving.benchmark.workloads.base import Workload
from serving.benchmark.workloads.repeat import renamed

LATER = "after the change: "


@dataclass(frozen=True, slots=True)
class Change:
    """Both as one workload.

    Attributes:
        later: the ids of the workflows that come after the change.
        live_footprint: of these, and so of those before; see `Statistics`.
    """

    workload: Workload
    later: frozenset[str]
    live_footprint: float


def change(before: Workload, after: Workload) -> Change:
    """`after` follows `before`, with nothing in common: names of workflows and texts are told apart.

    The lengths of `before` are scaled so that its workflows need as much of a cache as those of `after`. Otherwise
    one of them would be under no pressure, and leave nothing to unlearn or to learn.
    """
    footprint = after.statistics().live_footprint
    earlier = before.scaled(footprint / before.statistics().live_footprint).workflows
    later = tuple(renamed(one, _later, _later) for one in after.workflows)
    both = Workload(f"{before.name}, then {after.name}", (*earlier, *later), before.skipped + after.skipped)
    return Change(both, frozenset(one.id for one in later), footprint)


def _later(name: str) -> str:
    return LATER + name
