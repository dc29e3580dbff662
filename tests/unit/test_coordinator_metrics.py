"""What Prometheus gets of the coordinator."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from coordinator_reports import MadeUpEngine, began, cache_report, over

from cache_actor.cluster import Cluster
from cache_actor.messages import Eviction
from cache_actor.metrics import CoordinatorMetrics


class Recorded:
    """Stands for `ray.util.metrics`: keeps what was recorded, by metric and tags."""

    def __init__(self) -> None:
        self.values: defaultdict[str, Counter[tuple[tuple[str, str], ...]]] = defaultdict(Counter)
        recorded = self.values

        class Metric:
            def __init__(self, name: str, description: str, **options: Any) -> None:
                assert name.startswith("forecache_")
                assert description.endswith(".")
                self.name = name
                self.keys = set(options.get("tag_keys", ()))

            def _key(self, tags: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
                assert set(tags or ()) == self.keys
                return tuple(sorted((tags or {}).items()))

            def inc(self, value: float, tags: dict[str, str] | None = None) -> None:
                assert value > 0
                recorded[self.name][self._key(tags)] += value  # type: ignore[assignment]

            def set(self, value: float, tags: dict[str, str] | None = None) -> None:
                recorded[self.name][self._key(tags)] = value  # type: ignore[assignment]

            def observe(self, value: float) -> None:
                recorded[self.name][()] += 1

        self.Counter = self.Gauge = self.Histogram = Metric


def test_counters_grow_by_what_has_happened_since_they_were_shown() -> None:
    recorded, cluster, engine = Recorded(), Cluster(), MadeUpEngine()
    metrics = CoordinatorMetrics(recorded)
    lost = cache_report(evictions=[Eviction("w", "device", "recency", 30)])
    cluster.hear(engine.report(began("w"), over("w"), cache=[lost]), 1.0)
    metrics.show(cluster, {"plans": 2})
    metrics.show(cluster, {"plans": 2})
    cluster.hear(engine.report(began("w"), over("w"), ended={"w": "final"}), 2.0)
    cluster.engines["e"].limit = 7
    metrics.show(cluster, {"plans": 5, "limits": 3})
    metrics.synced(0.01)
    metrics.forecast(0.01, 3)
    values = recorded.values
    assert values["forecache_calls_over"][()] == 2
    assert values["forecache_prompt_tokens"][()] == 200
    assert values["forecache_plans"][()] == 5
    assert values["forecache_evicted_tokens"][(("kind", "device_recency"),)] == 30
    assert values["forecache_workflows_ended"][(("how", "final"),)] == 1
    assert values["forecache_workflows"][()] == 0
    assert (values["forecache_limited_engines"][()], values["forecache_limit_workflows"][()]) == (1, 7)
    assert values["forecache_limits"][()] == 3
    assert values["forecache_sync_seconds"][()] == values["forecache_forecast_seconds"][()] == 1


def test_no_id_becomes_a_label() -> None:
    recorded, cluster, engine = Recorded(), Cluster(), MadeUpEngine("an-engine")
    metrics = CoordinatorMetrics(recorded)
    cluster.hear(engine.report(began("a-workflow", "an-agent"), ended={"a-workflow": "final"}), 1.0)
    metrics.show(cluster, {})
    labels = {value for counter in recorded.values.values() for tags in counter for _, value in tags}
    assert not labels & {"an-engine", "a-workflow", "an-agent"}
