"""`forecache bench validate`: does the replay foretell what the real engine did? One suite on both, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from serving.benchmark.contestants import ROUTED_BY, Contestant, contestant
from serving.benchmark.driver.points import RunPoint, points_of, unlimited_tokens
from serving.benchmark.driver.suite import Suite, SuiteError
from serving.benchmark.figures import results_of
from serving.benchmark.records import RecordWriter, read_records
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup

# SGLang's own defaults, where an app says nothing.
DEFAULT_CHUNK_TOKENS = 8192
DEFAULT_MAX_RUNNING = 64
HIT_LIMIT = 0.02
LATENCY_LIMIT = 0.15

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One policy at one point: shares of prompt tokens hit on either tier, and mean seconds of a workflow."""

    point: str
    policy: str
    hit_real: float
    hit_replay: float
    latency_real_s: float
    latency_replay_s: float

    @property
    def hit_difference(self) -> float:
        return self.hit_replay - self.hit_real

    @property
    def latency_ratio(self) -> float:
        return self.latency_replay_s / self.latency_real_s

    @property
    def agrees(self) -> bool:
        return abs(self.hit_difference) <= HIT_LIMIT and abs(self.latency_ratio - 1) <= LATENCY_LIMIT

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        derived = {"hit_difference": self.hit_difference, "latency_ratio": self.latency_ratio, "agrees": self.agrees}
        return asdict(self) | derived


def agreements(suite: Suite, real: Mapping[str, Any], costs: Costs, progress: Progress) -> list[Agreement]:
    """Replays every policy at every point that a result of the suite has, and sets the figures side by side.

    Args:
        real: the results of `bench run`.

    Raises:
        SuiteError: the suite cannot be replayed.
    """
    replayed = replay_suite(suite, real, costs, progress)
    points = {point["key"]: point for point in replayed["points"]}
    found: list[Agreement] = []
    for point in real["points"]:
        for name, figures in point["policies"].items():
            ours = points.get(point["key"], {"policies": {}})["policies"].get(name)
            if ours is None or figures["latency_mean_s"] is None or ours["latency_mean_s"] is None:
                continue
            found.append(
                Agreement(
                    point["key"],
                    name,
                    figures["hit_share"],
                    ours["hit_share"],
                    figures["latency_mean_s"],
                    ours["latency_mean_s"],
                )
            )
    return found


def replay_suite(suite: Suite, real: Mapping[str, Any], costs: Costs, progress: Progress) -> dict[str, Any]:
    """The results of replaying what a result of the suite holds, with as many rounds."""
    played = {point["key"]: point["policies"] for point in real["points"]}
    with tempfile.TemporaryDirectory(prefix="forecache-validate-") as folder:
        path = Path(folder) / "records.jsonl"
        with RecordWriter(path) as writer:
            for point in points_of(suite):
                names = [name for name in played.get(point.spec.key, {}) if not contestant(name).session_refs]
                writer.point(point.spec)
                for name in names:
                    for number in range(suite.rounds):
                        progress(f"{point.spec.key} {name}, round {number + 1}")
                        _replay(suite, point, contestant(name), number, costs, writer)
        return results_of(read_records(path), suite.name, {"kind": "replay"}, True, suite.baseline)


def _replay(suite: Suite, point: RunPoint, who: Contestant, number: int, costs: Costs, writer: RecordWriter) -> None:
    seed = suite.round_seed(number)
    workload = point.workload.make(seed)
    engine = dict(suite.app.engine) | dict(point.engine)
    if "max_total_tokens" not in engine:
        raise SuiteError("the suite leaves the device pool to the engine; give sweep.device_tokens and run it again")
    if point.arrivals.time_scale != 1:
        raise SuiteError(f"arrivals.time_scale is {point.arrivals.time_scale:g}; a replay can only take 1")
    device = int(engine["max_total_tokens"])
    tiered = engine.get("enable_hierarchical_cache") and not who.unlimited
    shape = EngineShape(
        device_tokens=device,
        host_tokens=round(device * float(engine.get("hicache_ratio", 2.0))) if tiered else 0,
        chunk_tokens=int(engine.get("chunked_prefill_size") or DEFAULT_CHUNK_TOKENS),
        max_running=int(engine.get("max_running_requests") or DEFAULT_MAX_RUNNING),
        longest_call=int(engine.get("context_length") or suite.app.model.random.max_position_embeddings),
    )
    if who.unlimited:
        shape = replace(shape, device_tokens=unlimited_tokens([workload]))
    engines = suite.app.deployment.num_replicas
    setup = Setup(workload, point.arrivals.arrivals(seed), costs, shape, engines, seed, point.spec.key, number)
    policy, _, router = who.name.partition(ROUTED_BY)
    setup = replace(setup, router=router or None)
    run = Replay(setup, replace(who, name=policy), teacher=point.workload.make(suite.teaching_seed()))
    run.run()
    run.write(writer)
