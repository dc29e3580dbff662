"""What the door of the ingress shows to Prometheus, through Ray. Base units; no ids as labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

_BOUNDARIES = [0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]
# By the gate's own counts.
_COUNTED = {
    "held": ("waits", "Workflows that had to wait for a place.", None),
    "let_in": ("let_in", "Workflows let in after a wait.", None),
    "overdue": ("overdue", "Of these those let in beyond a limit, for they had waited too long.", None),
    "paused": ("paused", "Workflows that lost their place between two calls to a lower limit.", None),
    "gave_up": ("gave_up", "Idle workflows whose place another got.", None),
    "refused_full": ("refused", "Calls answered with 429.", "full"),
    "refused_wait": ("refused", "Calls answered with 429.", "wait"),
}


class AdmissionMetrics:
    """Counters grow by what the gate's own counts have grown since they were shown last.

    Args:
        metrics: `ray.util.metrics`, or what looks like it.
    """

    def __init__(self, metrics: Any) -> None:
        self._held = metrics.Gauge("forecache_admission_held", "Workflows that wait for a place.")
        self._admitted = metrics.Gauge("forecache_admission_admitted", "Workflows that are in, on all engines.")
        self._waits = metrics.Histogram(
            "forecache_admission_wait_seconds", "How long held calls waited.", boundaries=_BOUNDARIES
        )
        self._counters: dict[str, Any] = {}
        for name, text, reason in _COUNTED.values():
            if name not in self._counters:
                keys = () if reason is None else ("reason",)
                self._counters[name] = metrics.Counter(f"forecache_admission_{name}", text, tag_keys=keys)
        self._shown: Counter[str] = Counter()

    def waited(self, seconds: float) -> None:
        """A call that was held has gone."""
        self._waits.observe(seconds)

    def show(self, held: int, admitted: int, counts: Counter[str]) -> None:
        """Brings all of them up to date."""
        self._held.set(held)
        self._admitted.set(admitted)
        for count, (name, _, reason) in _COUNTED.items():
            if (grown := counts[count] - self._shown[count]) > 0:
                self._counters[name].inc(grown, tags=None if reason is None else {"reason": reason})
        self._shown = counts.copy()
