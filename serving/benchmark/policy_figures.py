"""The figures of one policy at one point of a sweep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.benchmark.balance_figures import balance_figures
from serving.benchmark.bootstrap import estimate
from serving.benchmark.records import CallRecord, RoundRecord
from serving.benchmark.workflow_figures import WorkflowFigures, time_to_first_token

PERCENTILES = (50, 95, 99)
SAMPLES_KEPT = 300
PREFETCH = {
    "loaded": "prefetch_loaded",
    "used": "prefetch_used",
    "late": "prefetch_late",
    "wasted": "prefetch_wasted",
    "active_evictions": "active_evictions_by_prefetch",
}

Rounds = Sequence[tuple[RoundRecord, Sequence[CallRecord]]]
Figures = dict[str, Any]


def policy_figures(rounds: Rounds, workflows: Sequence[WorkflowFigures]) -> Figures:
    """All figures of one policy, ready for JSON. What was not measured is None, never 0.

    Latencies and intervals are of workflows without a failed call; shares and tokens of calls that did not fail.
    `intervals` holds [low, high] of the means, see `bootstrap`.
    """
    calls = [call for _, each in rounds for call in each]
    counters = total_counters(rounds)
    finished = [each for each in workflows if not each.failed_calls]
    seconds = sum(record.seconds for record, _ in rounds)
    output = sum(each.output for each in workflows)
    tokens = sum(each.prompt for each in workflows) + output
    cpu = [record.policy_cpu_s for record, _ in rounds if record.policy_cpu_s is not None]
    return {
        "rounds": len(rounds),
        "workflows": len(finished),
        "failed_workflows": len(workflows) - len(finished),
        "calls": sum(each.calls for each in workflows),
        "failed_calls": sum(each.failed_calls for each in workflows),
        **_shares(workflows, counters),
        **_latencies("latency", [each.latency_s for each in finished]),
        **_latencies("latency_without_tools", [each.latency_without_tools_s for each in finished]),
        **_first_tokens(calls),
        "throughput_tokens_per_s": tokens / seconds if seconds else None,
        "output_tokens_per_s": output / seconds if seconds else None,
        "regret_tokens": counters.get("regret"),
        "prefetch": {name: counters.get(counter) for name, counter in PREFETCH.items()},
        "policy_cpu_s": sum(cpu) if cpu else None,
        "evicted": {tier: _by_reason(counters, f"evicted_{tier}_") for tier in ("device", "host")},
        **balance_figures(rounds),
        "counters": dict(sorted(counters.items())),
        "intervals": _intervals(workflows),
        "latencies": sorted(each.latency_s for each in finished),
        "timeline": _timeline(rounds),
    }


def total_counters(rounds: Rounds) -> dict[str, int]:
    """The engines' counters, summed over rounds; what no round counted is absent."""
    total: Counter[str] = Counter()
    for record, _ in rounds:
        total.update(record.counters)
    return dict(total)


def evicted_share(rounds: Rounds, workflows: Sequence[WorkflowFigures]) -> float | None:
    """Tokens evicted from the device over prompt tokens; None if nobody counted."""
    counters = total_counters(rounds)
    evicted = _by_reason(counters, "evicted_device_")
    prompt = counters.get("prompt") or sum(each.prompt for each in workflows)
    return sum(evicted.values()) / prompt if evicted and prompt else None


def _shares(workflows: Sequence[WorkflowFigures], counters: dict[str, int]) -> dict[str, float | None]:
    """Shares of the prompt tokens by where they came from, adding up to 1; of the engines' counters if calls do not
    say."""
    prompt = sum(each.prompt for each in workflows)
    device = sum(each.hit_device for each in workflows)
    host = sum(each.hit_host for each in workflows)
    if not prompt:
        prompt, device, host = (counters.get(name, 0) for name in ("prompt", "hit_device", "hit_host"))
    whole = max(prompt, device + host)
    if not whole:
        return {"hit_device": None, "hit_host": None, "computed": None, "hit_share": None}
    return {
        "hit_device": device / whole,
        "hit_host": host / whole,
        "computed": (whole - device - host) / whole,
        "hit_share": (device + host) / whole,
    }


def _latencies(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {f"{name}_{what}_s": None for what in ("mean", *(f"p{percent}" for percent in PERCENTILES))}
    percentiles = np.percentile(seconds, PERCENTILES)
    return {
        f"{name}_mean_s": float(np.mean(seconds)),
        **{f"{name}_p{percent}_s": float(at) for percent, at in zip(PERCENTILES, percentiles, strict=True)},
    }


def _first_tokens(calls: Sequence[CallRecord]) -> Figures:
    by_agent: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        ttft = time_to_first_token(call)
        if ttft is not None:
            by_agent[call.agent].append(ttft)
    every = [ttft for each in by_agent.values() for ttft in each]
    return {
        "ttft_mean_s": float(np.mean(every)) if every else None,
        "ttft_p95_s": float(np.percentile(every, 95)) if every else None,
        "ttft_by_agent": {agent: float(np.mean(by_agent[agent])) for agent in sorted(by_agent)},
    }


def _intervals(workflows: Sequence[WorkflowFigures]) -> dict[str, list[float] | None]:
    rounds: dict[int, list[tuple[float, ...]]] = {}
    for each in workflows:
        counts = not each.failed_calls
        latencies = (counts, counts * each.latency_s, counts * each.latency_without_tools_s)
        rounds.setdefault(each.round, []).append((*latencies, each.ttft_s, each.ttft_calls, each.hit, each.prompt))
    estimates = estimate(
        [np.array(rows, dtype=np.float64) for rows in rounds.values()],
        (
            lambda sums: sums[..., 1] / sums[..., 0],
            lambda sums: sums[..., 2] / sums[..., 0],
            lambda sums: sums[..., 3] / sums[..., 4],
            lambda sums: sums[..., 5] / sums[..., 6],
        ),
    )
    names = ("latency_mean_s", "latency_without_tools_mean_s", "ttft_mean_s", "hit_share")
    return {name: each[1:] if each else None for name, each in zip(names, estimates, strict=True)}


def _by_reason(counters: dict[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): counters[name] for name in sorted(counters) if name.startswith(prefix)}


def _timeline(rounds: Rounds) -> list[dict[str, float]]:
    """The samples of the round of median length among those that have any, thinned to `SAMPLES_KEPT`."""
    sampled = sorted((record.seconds, record.round) for record, _ in rounds if record.timeline)
    if not sampled:
        return []
    chosen = sampled[(len(sampled) - 1) // 2][1]
    samples = next(record.timeline for record, _ in rounds if record.round == chosen)
    kept = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), SAMPLES_KEPT)).round().astype(int))
    return [samples[number] for number in kept]
