"""What routing costs: a decision among many engines, and the snapshots that it is made from."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cache_actor.snapshot_deltas import SnapshotDecoder, SnapshotEncoder
from cache_actor.snapshots import EngineSnapshot, Resident
from serving.benchmark.budgets import Budget, Figures
from serving.routing import RoutedCall, Router, make_router

BUDGETS = (
    Budget("decision_p50_us", "µs of processor time, where a call goes, median", 200),
    Budget("decision_p99_us", "µs, 99th percentile", 200),
    Budget("snapshots_mb_per_s", "MB/s, to each process that takes calls in", 1.0),
)
WORKFLOWS_PER_ENGINE = 200
PERIOD_S = 0.2
# Of an engine, and of a workflow: the load of `forecache bench coordinator`.
CALLS_PER_S = 50
MEAN_CALLS = 25
AGENTS = 24
ANCHORS_PER_ENGINE = 16
ANCHOR_TOKENS = 2000
CAPACITY = 800_000
PERIODS = 10
# Clients commonly name workflows by UUIDs.
ID_BITS = 128

Progress = Callable[[str], None]


@dataclass(slots=True)
class MadeUpCluster:
    """Engines whose workflows call, grow, end and are followed by others."""

    engines: int
    rng: random.Random
    now: float = 0.0
    version: int = 0
    workflows: list[dict[str, Resident]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.engines):
            self.workflows.append({self._name(): self._there() for _ in range(WORKFLOWS_PER_ENGINE)})

    def step(self) -> list[EngineSnapshot]:
        """A period passes: the snapshots of all engines at its end."""
        self.now += PERIOD_S
        self.version += 1
        for living in self.workflows:
            for name in self.rng.sample(list(living), int(CALLS_PER_S * PERIOD_S)):
                if self.rng.random() < 1 / MEAN_CALLS:
                    del living[name]
                    living[self._name()] = Resident(self.rng.randrange(1, 4000))
                else:
                    there = living[name]
                    living[name] = replace(there, device=there.device + self.rng.randrange(100, 1500))
        return [self._snapshot(place, living) for place, living in enumerate(self.workflows)]

    def call(self) -> RoutedCall:
        """One of any workflow, or the first of a new one."""
        place = self.rng.randrange(self.engines)
        agent = f"agent-{self.rng.randrange(AGENTS)}"
        if self.rng.random() < 0.5:
            return RoutedCall(self._name(), agent, self.rng.randrange(2000, 9000))
        name = self.rng.choice(list(self.workflows[place]))
        return RoutedCall(name, agent, self.workflows[place][name].device + 500)

    def _there(self) -> Resident:
        return Resident(self.rng.randrange(1, 8000), self.rng.randrange(2000))

    def _name(self) -> str:
        return f"{self.rng.getrandbits(ID_BITS):032x}"

    def _snapshot(self, place: int, living: dict[str, Resident]) -> EngineSnapshot:
        anchors = {f"agent-{(place + number) % AGENTS}": ANCHOR_TOKENS for number in range(ANCHORS_PER_ENGINE)}
        needed = sum(one.device for one in living.values())
        pending = self.rng.randrange(20_000)
        return EngineSnapshot(
            f"engine-{place}", self.version, self.now, dict(living), anchors, pending, 16, needed, CAPACITY
        )


def measure(engines: int, decisions: int, progress: Progress, seed: int = 1) -> Figures:
    """All figures: those of BUDGETS, and the shares of a core that taking snapshots in takes, and making deltas."""
    cluster = MadeUpCluster(engines, random.Random(seed))
    encoder, decoder, router = SnapshotEncoder(), SnapshotDecoder(), make_router("workflow")
    router.set_engines(f"engine-{place}" for place in range(engines))
    encoder.tell(cluster.step(), cluster.now)
    _told(decoder, router, encoder, cluster.now)
    sizes, made, taken_in, decided = [], [], [], []
    for number in range(PERIODS):
        progress(f"period {number + 1} of {PERIODS}")
        snapshots = cluster.step()
        begin = time.thread_time()
        sizes.append(len(encoder.tell(snapshots, cluster.now)))
        made.append(time.thread_time() - begin)
        taken_in.append(_told(decoder, router, encoder, cluster.now))
        decided += [_decision(router, cluster) for _ in range(decisions // PERIODS)]
    decided.sort()
    return {
        "decision_p50_us": 1e6 * statistics.median(decided),
        "decision_p99_us": 1e6 * decided[int(0.99 * len(decided))],
        "snapshots_mb_per_s": statistics.mean(sizes) / PERIOD_S / 1e6,
        "snapshots_core_share": statistics.median(taken_in) / PERIOD_S,
        "snapshots_made_core_share": statistics.median(made) / PERIOD_S,
    }


def _told(decoder: SnapshotDecoder, router: Router, encoder: SnapshotEncoder, now: float) -> float:
    """Seconds of processor time that it takes until a router knows."""
    delta = encoder.after(decoder.number)
    assert delta is not None
    begin = time.thread_time()
    heard = decoder.apply(delta, now)
    assert heard is not None
    for snapshot in heard[0]:
        router.see(snapshot)
    return time.thread_time() - begin


def _decision(router: Router, cluster: MadeUpCluster) -> float:
    """Seconds of processor time that a decision takes."""
    call = cluster.call()
    running: dict[str, int] = {}
    begin = time.thread_time()
    decision = router.route(call, running, cluster.now)
    seconds = time.thread_time() - begin
    assert decision is not None
    router.answered(call.workflow, decision.engine)
    return seconds
