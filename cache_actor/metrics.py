"""The coordinator's figures for Prometheus, through Ray. Base units; no ids as labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cache_actor.cluster import Cluster

_BOUNDARIES = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]
# Counted things by metric, and the label that tells their kinds apart: a count named PREFIX + KIND is one of them.
_FAMILIES = {
    "orders_": ("forecache_prefetch_orders", "status", "Prefetch orders by what became of them."),
    "cache_prefetch_": ("forecache_prefetch_tokens", "outcome", "Tokens prefetched, by what became of them."),
    "evicted_": ("forecache_evicted_tokens", "kind", "Tokens evicted from engines, by tier and reason."),
    "ended_": ("forecache_workflows_ended", "how", "Workflows that have ended."),
}
_SINGLE = {
    "calls_over": "Calls that are over.",
    "prompt_tokens": "Tokens of their prompts.",
    "output_tokens": "Tokens of their outputs.",
    "hit_device": "Prompt tokens found on the device.",
    "hit_host": "Prompt tokens found on the host.",
    "hit_storage": "Prompt tokens loaded from the storage backend.",
    "cache_regret": "Prompt tokens computed again that had been evicted.",
    "warm_ups_done": "Anchors warmed up.",
    "plans": "Plans made.",
    "plans_applied": "Plans that engines applied.",
    "plans_refused": "Plans that engines refused.",
    "limits": "Changes of an engine's limit of workflows.",
    "tables": "Value tables sent.",
    "forecasts": "Forecasts taken in.",
}


class CoordinatorMetrics:
    """Counters grow by what the coordinator's own counts have grown since they were shown last.

    Args:
        metrics: `ray.util.metrics`, or what looks like it.
    """

    def __init__(self, metrics: Any) -> None:
        self._sync = metrics.Histogram(
            "forecache_sync_seconds", "Time to answer an engine's report.", boundaries=_BOUNDARIES
        )
        self._forecast = metrics.Histogram(
            "forecache_forecast_seconds", "Time to have a batch forecast.", boundaries=_BOUNDARIES
        )
        self._workflows = metrics.Gauge("forecache_workflows", "Living workflows.")
        self._engines = metrics.Gauge("forecache_engines", "Engines that report.")
        self._limited = metrics.Gauge("forecache_limited_engines", "Engines with a limit of workflows.")
        self._limit = metrics.Gauge("forecache_limit_workflows", "Sum of the limits of the engines that have one.")
        self._accuracy = metrics.Gauge(
            "forecache_forecast_accuracy_ratio", "Share of forecasts whose likeliest agent came.", tag_keys=("k",)
        )
        self._families = {
            prefix: metrics.Counter(name, text, tag_keys=(label,)) for prefix, (name, label, text) in _FAMILIES.items()
        }
        self._single = {
            name: metrics.Counter(f"forecache_{name.removeprefix('cache_')}", text) for name, text in _SINGLE.items()
        }
        self._shown: Counter[str] = Counter()

    def synced(self, seconds: float) -> None:
        self._sync.observe(seconds)

    def forecast(self, seconds: float, workflows: int) -> None:
        if workflows:
            self._forecast.observe(seconds)

    def show(self, cluster: Cluster, planned: Mapping[str, int]) -> None:
        """Brings all of them up to date."""
        self._workflows.set(len(cluster.workflows))
        self._engines.set(len(cluster.engines))
        limits = [engine.limit for engine in cluster.engines.values() if engine.limit is not None]
        self._limited.set(len(limits))
        self._limit.set(sum(limits))
        for k, share in enumerate(cluster.accuracy.figures(), start=1):
            if share is not None:
                self._accuracy.set(share, tags={"k": str(k)})
        counts = cluster.counts + Counter(planned)
        for name, count in counts.items():
            grown = count - self._shown[name]
            if grown > 0 and (found := self._metric(name)) is not None:
                counter, tags = found
                counter.inc(grown, tags=tags)
        self._shown = counts

    def _metric(self, name: str) -> tuple[Any, dict[str, str]] | None:
        if name in self._single:
            return self._single[name], {}
        for prefix, (_, label, _) in _FAMILIES.items():
            if name.startswith(prefix):
                return self._families[prefix], {label: name.removeprefix(prefix)}
        return None
