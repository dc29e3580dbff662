"""Replays of several policies at several sizes, written down as a benchmark's rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serving.benchmark.contestants import Contestant
from serving.benchmark.driver.points import unlimited_tokens
from serving.benchmark.records import PointSpec, RecordWriter
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Loss, Setup
from serving.benchmark.workloads import Lanes, Workload
from serving.benchmark.workloads.arrivals import Arrivals

FIRST_PASS = Contestant("lru")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is replayed: every policy at every combination of sizes, on the workload of each round's seed.

    Attributes:
        workload: of a seed; round r takes `seed + r`, and forecasts that learn are taught on one that is not measured.
        arrivals: lanes are swept over; any other arrivals stand alone.
        host_ratios: host tokens to a device token.
        routers: every policy under each of them; None stands for no router, as in `Setup`.
        loss: an engine that is lost; for runs with a router.
        learns: whether another seed is another workload of the same kind; a trace is the same for all.
    """

    workload: Callable[[int], Workload]
    policies: Sequence[Contestant]
    costs: Costs
    arrivals: Sequence[Arrivals]
    device_tokens: Sequence[int]
    host_ratios: Sequence[float]
    engines: int = 1
    chunk_tokens: int = 8192
    max_running: int = 64
    rounds: int = 1
    seed: int = 0
    learns: bool = True
    routers: Sequence[str | None] = (None,)
    loss: Loss | None = None

    def points(self) -> Iterator[tuple[PointSpec, Arrivals, int, int]]:
        """What is swept over: the point, its arrivals, its device tokens, its host tokens."""
        for arrivals, ratio, device in itertools.product(self.arrivals, self.host_ratios, self.device_tokens):
            name = {"concurrency": arrivals.lanes} if isinstance(arrivals, Lanes) else {"arrivals": str(arrivals)}
            host = round(device * ratio)
            yield PointSpec.of(**name, device_tokens=device, host_tokens=host), arrivals, device, host


def run_sweep(sweep: Sweep, path: Path, progress: Callable[[str, int, int], None]) -> None:
    """Runs it all and writes the records to `path`, round by round.

    Args:
        progress: told of the policy, of its calls that are over, and of all its calls.

    Raises:
        WorkloadError: what cannot be made.
    """
    with RecordWriter(path) as writer:
        for point, arrivals, device, host in sweep.points():
            writer.point(point)
            for number in range(sweep.rounds):
                _round(sweep, writer, point, arrivals, device, host, number, progress)


def _round(
    sweep: Sweep,
    writer: RecordWriter,
    point: PointSpec,
    arrivals: Arrivals,
    device: int,
    host: int,
    number: int,
    progress: Callable[[str, int, int], None],
) -> None:
    workload = sweep.workload(sweep.seed + number)
    teacher = sweep.workload(sweep.seed + number + 10_000) if sweep.learns else None
    statistics = workload.statistics()
    shape = EngineShape(
        device_tokens=device,
        host_tokens=host,
        chunk_tokens=sweep.chunk_tokens,
        max_running=sweep.max_running,
        longest_call=statistics.longest_prompt + max(call.output_tokens for _, _, call in workload.calls()),
    )
    plain = Setup(workload, arrivals, sweep.costs, shape, sweep.engines, sweep.seed, point.key, number)

    def run(contestant: Contestant, setup: Setup, first_pass: Replay | None = None) -> Replay:
        its = setup
        if contestant.unlimited:
            its = replace(setup, shape=replace(shape, device_tokens=unlimited_tokens([workload]), host_tokens=0))
        replay = Replay(its, contestant, first_pass.sent if first_pass else None, teacher)
        replay.run(lambda calls: progress(contestant.name, calls, statistics.calls))
        return replay

    for contestant, router in itertools.product(sweep.policies, sweep.routers):
        setup = replace(plain, router=router, loss=sweep.loss)
        first = run(FIRST_PASS, setup) if contestant.clairvoyant else None
        run(contestant, setup, first).write(writer)
