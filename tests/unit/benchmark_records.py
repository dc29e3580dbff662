"""Records of benchmark runs that never took place, for the tests of figures, report and comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from serving.benchmark.records import CallRecord, PointSpec, Records, RoundRecord

PROMPT = 1000
COUNTERS = {
    "prompt": 90_000,
    "regret": 4_000,
    "evicted_device_retired": 20_000,
    "evicted_device_recency": 10_000,
    "evicted_host_recency": 500,
    "prefetch_loaded": 100,
    "prefetch_used": 80,
    "prefetch_late": 5,
    "prefetch_wasted": 15,
    "active_evictions_by_prefetch": 0,
}


def workflow_calls(
    point: str, policy: str, round_: int, workflow: str, seconds: Sequence[float], hit: int = 400, pause: float = 0.5
) -> list[CallRecord]:
    """One call after the other, each of so many seconds, with a tool's pause after each."""
    at, calls = 10.0 * round_, []
    for index, length in enumerate(seconds):
        agent = ("planner", "coder")[index % 2]
        times = (at, at + 0.2 * length, at + length)
        calls.append(
            CallRecord(point, policy, round_, workflow, index, agent, *times, PROMPT, hit, hit // 4, 20, pause)
        )
        at += length + pause
    return calls


def made_up(
    factors: Mapping[str, float],
    points: Sequence[PointSpec] = (PointSpec.of(concurrency=8),),
    rounds: int = 3,
    workflows: int = 12,
    seed: int = 0,
    counters: Mapping[str, int] | None = COUNTERS,
) -> Records:
    """Policies that take `factors` times as long as the work is and hit the less the longer they take."""
    finished: dict[tuple[str, str, int], tuple[RoundRecord, list[CallRecord]]] = {}
    for place, point in enumerate(points):
        for round_ in range(rounds):
            generator = np.random.default_rng((seed, place, round_))
            work = generator.gamma(4.0, 0.5 * (1 + place), size=(workflows, 3))
            for number, (policy, factor) in enumerate(factors.items()):
                mood = np.random.default_rng((seed, place, round_, number))
                calls: list[CallRecord] = []
                for name, lengths in enumerate(work):
                    seconds = lengths * factor * mood.normal(1.0, 0.03, size=lengths.shape)
                    hit = int(np.clip(400 / factor + mood.normal(0, 10), 0, 700))
                    calls += workflow_calls(point.key, policy, round_, f"w{name}", seconds.tolist(), hit)
                finished[point.key, policy, round_] = (
                    RoundRecord(point.key, policy, round_, 60.0 * factor, counters or {}, 0.2, timeline(mood)),
                    calls,
                )
    return Records({point.key: point for point in points}, finished)


def timeline(generator: np.random.Generator, samples: int = 50) -> list[dict[str, float]]:
    """A pool of 10,000 tokens."""
    active = 5000 + generator.normal(0, 200, samples).cumsum().clip(-2000, 2000)
    retired = (10_000 - active) * 0.6
    return [
        {
            "at_s": float(i),
            "active": float(a),
            "running": float(a / 2),
            "retired": float(r),
            "prefetched": 500.0,
            "free": float(9500 - a - r),
        }
        for i, (a, r) in enumerate(zip(active, retired, strict=True))
    ]
