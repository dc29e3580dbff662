"""KV prefetch (PBKV): brings back from the host what a paused workflow's next call is likely to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cache_actor.cluster import Cluster
from cache_actor.policies.base import VALUE_ONE
from cache_actor.runtime import Draft, RuntimePolicy
from cache_actor.snapshots import NOTHING
from cache_actor.state import EngineState, WorkflowState

# An agent that is less likely than this to come next is not worth the link.
LEAST_CHANCE = 0.2
# Orders without a receipt that an engine may have at once.
IN_FLIGHT = 4
# A workflow whose missing part is smaller is left to the load at its call, in tokens.
LEAST_TOKENS = 64


class KvPrefetch(RuntimePolicy):
    """Orders for workflows between two calls that have something on the host alone; the likeliest first.

    The engine has the last word: it loads into free and retired space only, beside its work (`design.md`, Prefetch).
    """

    name: ClassVar[str] = "kv-prefetch"

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        forecast = self.predict(workflow)
        if forecast is None or workflow.path.running or workflow.paused:
            return {}
        if workflow.residency.get(engine.id, NOTHING).host < LEAST_TOKENS:
            return {}
        return {agent: chance for agent, chance in forecast.next.items() if chance >= LEAST_CHANCE}

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        free = IN_FLIGHT - len(engine.orders)
        if free <= 0:
            return
        waiting = {workflow for workflow, *_ in engine.orders.values()}
        wanted = [
            (chance, workflow.id, agent, workflow.residency[engine.id].host)
            for workflow in news
            if workflow.id not in waiting
            for agent, chance in self.score(workflow, engine).items()
        ]
        wanted.sort(key=lambda one: (-one[0], one[1], one[2]))
        for chance, workflow, agent, tokens in wanted[:free]:
            draft.prefetches.append((round(chance * VALUE_ONE), workflow, agent, tokens))
            draft.reasons.append((workflow, "prefetch", tokens, agent, chance))
