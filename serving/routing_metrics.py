"""What routing shows to Prometheus, through Ray. No ids as labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

# Of a table's counts those that are no reason for a decision.
_APART = {
    "rehomed": "Workflows that were moved between two calls, off engines that were overloaded or draining.",
    "retried": "Calls that were sent to another engine because theirs was lost before it had answered.",
}


class RoutingMetrics:
    """Counters grow by what a table's own counts have grown since they were shown last.

    Args:
        metrics: `ray.util.metrics`, or what looks like it.
    """

    def __init__(self, metrics: Any) -> None:
        self._routed = metrics.Counter("forecache_routed", "Calls by why they went to their engine.", tag_keys=("why",))
        self._apart = {name: metrics.Counter(f"forecache_{name}", text) for name, text in _APART.items()}
        self._shown: Counter[str] = Counter()

    def show(self, counts: Counter[str]) -> None:
        """Brings all of them up to date."""
        for name, grown in (counts - self._shown).items():
            if name in self._apart:
                self._apart[name].inc(grown)
            else:
                self._routed.inc(grown, tags={"why": name})
        self._shown = counts.copy()
