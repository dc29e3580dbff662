"""Ray Serve's autoscaling policy over `serving.scaling`: engines by what workflows need, not by queue length alone.

It runs in Serve's controller, several times a second. Serve ships this module by value, so nothing here may be a
global that others look at.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ray.serve.config import AutoscalingContext
from ray.util import metrics

from serving.config import ScalingConfig
from serving.scaling import Decision, EngineStats, Observation, Past, decide

_STATE = "forecache"


class WorkflowAutoscaling:
    """`policy_function` of an `autoscaling_config`; `policy_kwargs` are the fields of `ScalingConfig`.

    What it needs of the engines they tell Serve in `record_autoscaling_stats`. Serve's own delays and factors come on
    top of its decisions: `build_app` sets the delays to 0. Calls that wait while there is no engine never get
    here: Serve starts one for them by itself.
    """

    def __init__(self, **config: Any) -> None:
        self._config = ScalingConfig(**config)
        self._log = logging.getLogger("ray.serve")
        self._asked = metrics.Gauge(
            "forecache_engines_asked", "Engines that each signal asks for.", tag_keys=("signal",)
        )
        self._wanted = metrics.Gauge("forecache_engines_wanted", "Engines that there should be.")

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        seen = observation(context)
        past: Past | None = context.policy_state.get(_STATE)
        decision, past = decide(seen, past, self._config, time.monotonic())
        self._show(seen, decision)
        return decision.target, {_STATE: past}

    def _show(self, seen: Observation, decision: Decision) -> None:
        self._wanted.set(decision.target)
        for signal, engines in decision.asked.items():
            self._asked.set(engines, tags={"signal": signal})
        if decision.target != seen.target:
            asked = ", ".join(f"{signal} {engines:.2f}" for signal, engines in decision.asked.items())
            self._log.info(
                "forecache: %d engines instead of %d: %s (asked for: %s)",
                decision.target,
                seen.target,
                decision.reason,
                asked,
            )


def observation(context: AutoscalingContext) -> Observation:
    """What Serve knows, as the decision wants it: of each figure of an engine the newest, and no mean over a while.

    Serve's count of what waits for an engine is such a mean, and has in it every question to an engine that passed
    through. Where there are engines, less than one is therefore nobody.
    """
    newest: dict[Any, dict[str, float]] = {}
    for name, by_replica in (context.raw_metrics or {}).items():
        for replica, series in by_replica.items():
            if series:
                newest.setdefault(replica, {})[name] = series[-1].value
    heard = [newest[replica] for replica in context.running_replicas if "workflows" in newest.get(replica, {})]
    queued = context.total_queued_requests or 0.0
    return Observation(
        [EngineStats.heard(figures) for figures in heard],
        silent=len(context.running_replicas) - len(heard),
        queued=float(int(queued)) if context.running_replicas else queued,
        target=context.target_num_replicas,
        least=context.capacity_adjusted_min_replicas,
        most=context.capacity_adjusted_max_replicas,
    )
