"""KV reuse (PBKV, arXiv 2605.06472): tells engines what each agent's coming calls make its cache entries worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cache_actor.cluster import Cluster
from cache_actor.policies.base import VALUE_ONE
from cache_actor.runtime import Draft, RuntimePolicy
from cache_actor.state import EngineState, WorkflowState

# A value that moved by less than this says nothing new, in expected calls.
LEAST_CHANGE = 0.01
NAMED = 3
# What a paused workflow's values are divided by: the highest is then below the lowest of one that goes on.
LATE = 1 << 13


class KvReuse(RuntimePolicy):
    """Value tables of forecasts; the engine's ledger adds them up over all workflows that share an entry.

    An engine that evicts only what is over has no use for them, and a plan is not free. When
    it comes under pressure, all that lives there is news. What a paused workflow will use it uses late: of all that
    lives, that leaves first.
    """

    name: ClassVar[str] = "kv-reuse"

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, dict[str, int]]] = {}  # workflow -> generation of the engine, table

    def ended(self, workflow: str) -> None:
        self._told.pop(workflow, None)

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        forecast = self.predict(workflow)
        return {} if forecast is None else {agent: value / VALUE_ONE for agent, value in forecast.table.items()}

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        if engine.last_heard >= engine.pressed_until:
            return
        for workflow in news:
            forecast = self.predict(workflow)
            if forecast is None:
                self._without_forecast(workflow, engine, draft)
                continue
            table = forecast.table
            if workflow.paused:
                table = {agent: value // LATE for agent, value in table.items()}
            told = self._told.get(workflow.id)
            if told is not None and told[0] == engine.generation and _alike(told[1], table):
                continue
            self._told[workflow.id] = (engine.generation, table)
            draft.tables[workflow.id] = table
            best = sorted(forecast.next.items(), key=lambda item: -item[1])[:NAMED]
            named = ", ".join(f"{agent} {chance:.0%}" for agent, chance in best)
            over = 1 - forecast.survival[0]
            draft.reasons.append((workflow.id, "table", forecast.model, named or "nobody", over))

    def _without_forecast(self, workflow: WorkflowState, engine: EngineState, draft: Draft) -> None:
        """Of a workflow nothing is known but whether it is paused: then no use of what it has is expected."""
        told = self._told.get(workflow.id)
        if workflow.paused and (told is None or told[0] != engine.generation):
            self._told[workflow.id] = (engine.generation, {})
            draft.tables[workflow.id] = {}
        elif not workflow.paused and told is not None:
            del self._told[workflow.id]
            draft.tables[workflow.id] = None


def _alike(before: dict[str, int], after: dict[str, int]) -> bool:
    least = LEAST_CHANGE * VALUE_ONE
    return before.keys() == after.keys() and all(abs(before[agent] - value) < least for agent, value in after.items())
