"""How evenly calls were spread over several engines, and why each went where it did. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from serving.benchmark.records import CallRecord, RoundRecord


def balance_figures(rounds: Sequence[tuple[RoundRecord, Sequence[CallRecord]]]) -> dict[str, Any]:
    """Load of the busiest engine over the mean engine's, 1 if all are alike, mean of the rounds.

    Returns:
        {"engines": how many there were, "balance": {"calls", "prompt", "computed": calls, their prompt tokens and those
        of these that no cache had}, "routes": calls by why they went to their engine}. `balance` is empty where there
        was one engine, or it is not known which engine answered.
    """
    told: list[Mapping[str, float]] = []
    for record, calls in rounds:
        answered = [call for call in calls if call.engine in record.engines and call.error is None]
        if len(record.engines) > 1 and answered:
            told.append(_balance(record.engines, answered))
    routes = Counter(call.route for _, calls in rounds for call in calls if call.route)
    return {
        "engines": max((len(record.engines) for record, _ in rounds), default=0),
        "balance": {name: sum(each[name] for each in told) / len(told) for name in told[0]} if told else {},
        "routes": dict(routes.most_common()),
    }


def _balance(engines: Sequence[str], calls: Sequence[CallRecord]) -> dict[str, float]:
    loads = {name: dict.fromkeys(engines, 0) for name in ("calls", "prompt", "computed")}
    for call in calls:
        loads["calls"][call.engine] += 1
        loads["prompt"][call.engine] += call.prompt_tokens
        loads["computed"][call.engine] += call.prompt_tokens - call.hit_device - call.hit_host
    return {name: _over_mean(list(each.values())) for name, each in loads.items()}


def _over_mean(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0
