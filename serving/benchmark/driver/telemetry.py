"""Engines' figures as a benchmark records them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_HOST = ("host_active", "host_retired", "host_dormant", "host_free")
_REASONS = ("retired", "low_value", "recency")
_COUNTED = ("regret", *(f"evicted_{tier}_{reason}" for tier in ("device", "host") for reason in _REASONS))


def difference(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What the engines' counters grew by, summed over engines; empty for engines that count nothing.

    An engine that counts names a counter only once it has something to count; until then it is 0, not unknown.

    Args:
        before, after: `data` of GET /v1/engines.
    """
    total: Counter[str] = Counter()
    counted = False
    for engines, sign in ((before, -1), (after, 1)):
        for engine in engines:
            for name, count in ((engine.get("cache") or {}).get("counters") or {}).items():
                total[name] += sign * count
                counted = True
    return dict.fromkeys(_COUNTED, 0) | dict(total) if counted else {}


def counts_nothing(engines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these engines have SGLang's own cache, which counts nothing; one that was busy has no `cache` at all."""
    return all("error" in (engine.get("cache") or {}) for engine in engines)


def complete(engines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every engine has said something of its cache."""
    return bool(engines) and all(engine.get("cache") for engine in engines)


def sample_of(engine: Mapping[str, Any], pool: int, at_s: float) -> dict[str, float] | None:
    """One sample of a `RoundRecord`'s timeline, None if the engine was too busy to say.

    Whatever is neither free, retired nor waiting after a prefetch counts as `active`: nodes of living workflows,
    what running calls hold outside of the tree, and dormant anchors (given apart, too, as `dormant`).

    Args:
        engine: of `data` of GET /v1/engines.
        pool: tokens of its device pool.
    """
    pools = (engine.get("cache") or {}).get("pools")
    if not pools:
        return None
    free = min(pools["free"], pool)
    retired = min(pools.get("device_retired", 0), pool - free)
    prefetched = min(pools.get("prefetched_unused", 0), pool - free - retired)
    sample = {
        "at_s": round(at_s, 3),
        "free": free,
        "retired": retired,
        "prefetched": prefetched,
        "active": pool - free - retired - prefetched,
        "running": max(0, pool - free - pools["evictable"]),
        "dormant": pools.get("device_dormant", 0),
    }
    return sample | {name: pools[name] for name in _HOST if name in pools}


def gate_sample_of(coordinator: Mapping[str, Any], engine: str) -> dict[str, float]:
    """What a sample says of an engine's limit (left out without one), of who is in, and of who waits.

    Args:
        coordinator: of GET /v1/coordinator.
    """
    for one in coordinator["engines"]:
        if one["id"] == engine:
            told = one["admission"]
            sample = {"admitted": float(told["admitted"]), "held": float(told["held"])}
            return sample if told["limit"] is None else sample | {"limit": float(told["limit"])}
    return {}
