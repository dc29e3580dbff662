"""When the workflows of a workload start."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from serving.benchmark.workloads.base import Workload, WorkloadError


@dataclass(frozen=True, slots=True)
class Lanes:
    """A closed loop: so many workflows at once, and each lane starts the next workflow when its own has ended."""

    lanes: int

    def __post_init__(self) -> None:
        if isinstance(self.lanes, bool) or not isinstance(self.lanes, int) or self.lanes < 1:
            raise WorkloadError(f"lanes is {self.lanes!r}; give a whole number from 1")

    def start_times(self, workload: Workload) -> tuple[float, ...] | None:
        """None: a start depends on an end."""
        return None


@dataclass(frozen=True, slots=True)
class Poisson:
    """An open loop: starts at random, `per_s` in a second on average, the same ones for the same seed."""

    per_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.per_s, bool) or not isinstance(self.per_s, int | float) or not 0 < self.per_s < math.inf:
            raise WorkloadError(f"per_s is {self.per_s!r}; give a positive number of workflows a second")

    def start_times(self, workload: Workload) -> tuple[float, ...]:
        """One for each workflow, in seconds from the start, rising."""
        dice = random.Random(f"poisson/{self.seed}")
        return tuple(accumulate(dice.expovariate(self.per_s) for _ in workload.workflows))


@dataclass(frozen=True, slots=True)
class Times:
    """An open loop: each workflow starts at its own `arrival_s`, as it was recorded."""

    def start_times(self, workload: Workload) -> tuple[float, ...]:
        """One for each workflow, in the workload's order, in seconds.

        Raises:
            WorkloadError: a workflow without an arrival time.
        """
        times = []
        for workflow in workload.workflows:
            if workflow.arrival_s is None:
                raise WorkloadError(
                    f"workload {workload.name!r}: workflow {workflow.id!r} has no arrival time;"
                    " choose lanes or poisson arrivals"
                )
            times.append(workflow.arrival_s)
        return tuple(times)


Arrivals = Lanes | Poisson | Times
