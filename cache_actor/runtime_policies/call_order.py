"""Call ordering: which workflow's calls go first when an engine is full. It is not about KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cache_actor.cluster import Cluster
from cache_actor.runtime import Draft, RuntimePolicy
from cache_actor.snapshots import NOTHING
from cache_actor.state import EngineState, WorkflowState

# Priorities are between these, so that a client's own stay above or below all of them.
HIGHEST = 100
LEAST_CHANGE = 5


class CallOrder(RuntimePolicy):
    """Shortest remaining work first: few expected calls, and much of the context on the device already.

    An engine heeds it with SGLang's `enable_priority_scheduling`; a call of a client that names a priority keeps that.
    """

    name: ClassVar[str] = "call-order"

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}

    def ended(self, workflow: str) -> None:
        self._told.pop(workflow, None)

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        forecast = self.predict(workflow)
        if forecast is None:
            return {}
        share_left = forecast.remaining() / max(1, len(forecast.survival))
        there = workflow.residency.get(engine.id, NOTHING)
        resident = there.device / (there.device + there.host) if there != NOTHING else 0.0
        return {"": HIGHEST * (0.75 * (1 - share_left) + 0.25 * resident)}

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        for workflow in news:
            scores = self.score(workflow, engine)
            if not scores:
                continue
            priority = round(scores[""])
            told = self._told.get(workflow.id)
            if told is None or told[0] != engine.generation or abs(told[1] - priority) >= LEAST_CHANGE:
                self._told[workflow.id] = (engine.generation, priority)
                draft.priorities[workflow.id] = priority
