"""Anchor warm-up (CacheScout, arXiv 2608.14624): computes an agent's system prompt where it is about to be called.

And on an engine that is new, before it gets calls, those of the agents that call most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import ClassVar

from cache_actor.cluster import Cluster
from cache_actor.messages import CallEvent
from cache_actor.policies.survival import Transitions
from cache_actor.runtime import Draft, RuntimePolicy
from cache_actor.state import EngineState, WorkflowState

# Below this predictability R = 1 - H(next | current) / H(next) a guess is too often wrong.
LEAST_PREDICTABILITY = 0.3
LEAST_CHANCE = 0.3
# One at a time on an engine, and not oftener than this, in seconds.
PERIOD_S = 2.0
# A warm-up of which nothing was heard for so long, in seconds, is over.
LOST_S = 60.0
# After so long without a call its anchor may be gone from the engine, in seconds.
STALE_S = 600.0
# A new engine gets no more anchors than this, nor more than this share of its pool, if the size of that is known.
HOTTEST = 16
HOTTEST_SHARE = 0.5
# A call counts half after so long, in seconds.
HALF_LIFE_S = 300.0
AGENTS_KEPT = 512
_ID_BYTES = 4


class Heat:
    """Which agents call most: calls by agent, each of which counts half after HALF_LIFE_S. Bounded."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[float, float]] = {}  # agent -> calls, as of when

    def called(self, agent: str, at: float) -> None:
        self._calls[agent] = (self._of(agent, at) + 1.0, at)
        if len(self._calls) > AGENTS_KEPT:
            del self._calls[min(self._calls, key=lambda one: self._of(one, at))]

    def hottest(self, most: int, now: float) -> list[str]:
        """The agents that call most, the hottest first."""
        return heapq.nlargest(most, self._calls, key=lambda agent: (self._of(agent, now), agent))

    def _of(self, agent: str, now: float) -> float:
        calls, at = self._calls.get(agent, (0.0, now))
        return float(calls * 0.5 ** (max(0.0, now - at) / HALF_LIFE_S))


class AnchorWarmUp(RuntimePolicy):
    """The likeliest next agent of a workflow, if it has not called on the workflow's engine for long.

    Its calls on other engines told what its anchor is. A warm-up is no call: nobody counts it or learns from it.
    """

    name: ClassVar[str] = "anchor-warm-up"

    def __init__(self) -> None:
        self._transitions = Transitions()
        self._heat = Heat()
        self._next: dict[str, float] = {}  # engine -> when it may be warmed again

    def observe(self, event: CallEvent, engine: EngineState) -> None:
        if not event.over:
            self._transitions.observe(event.workflow, event.agent)
            self._heat.called(event.agent, event.at)

    def ended(self, workflow: str) -> None:
        self._transitions.end(workflow)

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        forecast = self.predict(workflow)
        if forecast is None:
            return {}
        now = engine.last_heard
        return {
            agent: chance
            for agent, chance in forecast.next.items()
            if chance >= LEAST_CHANCE and now - engine.agents.get(agent, -STALE_S) >= STALE_S
        }

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        now = engine.last_heard
        self._next = {name: at for name, at in self._next.items() if at > now - LOST_S}
        if now < self._next.get(engine.id, 0.0) or any(now - at < LOST_S for at in engine.warming.values()):
            return
        if engine.number == 1:  # its first report
            draft.warm_ups.extend(self._hottest(engine, cluster))
            return
        wanted = [
            (chance, agent, workflow.id)
            for workflow in news
            for agent, chance in self.score(workflow, engine).items()
            if agent in cluster.anchors
        ]
        if not wanted or self._transitions.predictability() < LEAST_PREDICTABILITY:
            return
        chance, agent, workflow_id = max(wanted)
        self._next[engine.id] = now + PERIOD_S
        draft.warm_ups.append(agent)
        draft.reasons.append((workflow_id, "warm-up", agent, chance))

    def _hottest(self, engine: EngineState, cluster: Cluster) -> list[str]:
        """What a new engine should have before it gets calls. Its pool is taken to be as large as the others'."""
        sizes = [_pool(other) for other in cluster.engines.values() if other.pools]
        room = HOTTEST_SHARE * min(sizes) * _ID_BYTES if sizes else float("inf")
        chosen = []
        for agent in self._heat.hottest(HOTTEST, engine.last_heard):
            size = len(cluster.anchors.get(agent, b""))
            if 0 < size <= room and agent not in engine.agents:
                chosen.append(agent)
                room -= size
        return chosen


def _pool(engine: EngineState) -> int:
    """Tokens of its device pool."""
    return sum(engine.pools.get(name, 0) for name in ("free", "evictable", "locked"))
