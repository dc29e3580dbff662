"""Predictors that the learned one is measured against, and that serve until it has earned its place."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from cache_actor.policies.survival import Transitions
from predictor_actor.agents import Agents
from predictor_actor.base import HORIZON, AgentFacts, Forecasts, Predictor, Prefix, WorkflowTrace


class Uniform(Predictor):
    """Any agent that was ever seen is as likely as any other, and the workflow goes on."""

    name: ClassVar[str] = "uniform"

    def __init__(self) -> None:
        self._agents = Agents()

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        for name in facts:
            self._agents.use(name)

    def observe(self, prefix: Prefix) -> None:
        if prefix.agents:
            self._agents.use(prefix.agents[-1])

    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        count = len(self._agents)
        steps = np.zeros((len(prefixes), HORIZON, count + 1), np.float32)
        if count:
            steps[:, :, :-1] = 1 / count
        else:
            steps[:, :, -1] = 1
        return Forecasts(self._agents.names, steps, self.name)


class Transition(Predictor):
    """CacheSage's and CacheScout's online matrix: the followers of the current agent within a sliding window, chained.

    It counts no ends and no agent that follows itself, so it knows neither; `transitions` has the survival by hops and
    the predictability that their papers make of it.
    """

    name: ClassVar[str] = "transition"

    def __init__(self, window: int = 1024) -> None:
        self.transitions = Transitions(window=window)
        self._known = Uniform()

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        self._known.introduce(facts)

    def observe(self, prefix: Prefix) -> None:
        self._known.observe(prefix)
        if len(prefix.agents) > 1:
            self.transitions.follow(prefix.agents[-2], prefix.agents[-1])

    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        uniform = self._known.forecast(prefixes)
        places = {name: place for place, name in enumerate(uniform.agents)}
        matrix = np.zeros((len(places), len(places)), np.float32)
        for name, place in places.items():
            for follower, probability in self.transitions.row(name).items():
                if follower in places:
                    matrix[place, places[follower]] = probability
        left = matrix.sum(axis=1, keepdims=True)
        matrix = np.divide(matrix, left, out=np.full_like(matrix, 1 / max(1, len(places))), where=left > 0)
        for row, prefix in enumerate(prefixes):
            current = places.get(prefix.agents[-1]) if prefix.agents else None
            if current is not None:
                now = matrix[current]
                for k in range(HORIZON):
                    uniform.steps[row, k, :-1] = now
                    now = now @ matrix
        return Forecasts(uniform.agents, uniform.steps, self.name)


class Oracle(Predictor):
    """The agents that do come, of workflows whose traces it has, but for a share of wrong ones.

    Args:
        traces: the future. Of a workflow that is not among them nothing is known: it is forecast to end.
        noise: the share of forecast calls for which one of the other agents is named, from 0 to 1.
    """

    name: ClassVar[str] = "oracle"

    def __init__(self, traces: Sequence[WorkflowTrace], noise: float = 0.0, seed: int = 0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is {noise}; give a share from 0 to 1")
        self._futures = {trace.workflow: [call.agent for call in trace.calls] for trace in traces}
        self._agents = tuple(dict.fromkeys(agent for future in self._futures.values() for agent in future))
        self._places = {agent: place for place, agent in enumerate(self._agents)}
        self._noise = noise
        self._seed = seed

    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        steps = np.zeros((len(prefixes), HORIZON, len(self._agents) + 1), np.float32)
        for row, prefix in enumerate(prefixes):
            coming = self._futures.get(prefix.workflow, [])[prefix.length : prefix.length + HORIZON]
            rng = random.Random(f"{self._seed} {prefix.workflow} {prefix.length}")
            for k in range(HORIZON):
                place = self._place(coming[k], rng) if k < len(coming) else -1
                steps[row, k, place] = 1
        name = self.name if self._noise == 0 else f"noisy({self._noise:g})"
        return Forecasts(self._agents, steps, name)

    def _place(self, agent: str, rng: random.Random) -> int:
        place = self._places[agent]
        if rng.random() < self._noise and len(self._agents) > 1:
            return (place + rng.randrange(1, len(self._agents))) % len(self._agents)
        return place
