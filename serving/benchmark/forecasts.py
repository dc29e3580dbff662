"""Forecasts of a workload whose truth is known, as value tables: what a coordinator would send, without one.

A source is told of each call as it starts and ends, and says what the engine should know from then on.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cache_actor.policies.lookahead import lookahead_table, one_step_table
from cache_actor.policies.steps import StepGraph, steps_table
from cache_actor.policies.survival import Transitions, cachescout_table, survival_table
from cache_actor.policies.ttl import ReturnTimes, pin_table
from serving.benchmark.contestants import Contestant
from serving.benchmark.workloads import Workflow, Workload

HORIZON = 3
DISCOUNT = 0.8
# Continuum's two sides of a pin: what a hit saves, and what a second of the pin costs the others, both in seconds.
PIN_BENEFIT_S = 2.0
PIN_COST_PER_S = 0.25

Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Word:
    """What an engine is told of a workflow: its value table, and the agents to prefetch for with their values."""

    table: dict[str, int]
    prefetch: dict[str, int] = field(default_factory=dict)


class Source:
    """Where tables come from. A workflow's calls are announced in their order, with seconds of the engine's clock.

    What a source does not care to hear of it leaves alone.
    """

    def teach(self, workload: Workload) -> None:
        """Learns from a workload of the same kind that is not the one measured."""

    def started(self, workflow: Workflow, index: int, now: float) -> Word | None:
        """Call `index` starts: what will be used after it; None when there is nothing to say."""
        return None

    def ended(self, workflow: Workflow, index: int, now: float) -> Word | None:
        """Call `index` is over."""
        return None

    def over(self, workflow: Workflow) -> None:
        """The workflow has ended."""


class Lookahead(Source, ABC):
    """PBKV's table of the next `HORIZON` calls; subclasses say who makes them."""

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        steps, survival = self.steps(workflow, index)
        return Word(lookahead_table(steps, survival, DISCOUNT), one_step_table(steps, survival))

    @abstractmethod
    def steps(self, workflow: Workflow, index: int) -> tuple[list[Step], list[float]]:
        """P_1..P_K and s(1)..s(K) of what comes after call `index`."""


class Uniform(Lookahead):
    """Any agent is as likely as any other, and the workflow goes on."""

    def __init__(self, agents: Sequence[str]) -> None:
        self._step = dict.fromkeys(agents, 1 / len(agents))

    def steps(self, workflow: Workflow, index: int) -> tuple[list[Step], list[float]]:
        return [self._step] * HORIZON, [1.0] * HORIZON


class Oracle(Lookahead):
    """The agents that do come, but for a share of `noise` of the steps, which names one of the others."""

    def __init__(self, agents: Sequence[str], noise: float = 0.0, seed: int = 0) -> None:
        self._agents = agents
        self._noise = noise
        self._seed = seed

    def steps(self, workflow: Workflow, index: int) -> tuple[list[Step], list[float]]:
        steps: list[Step] = []
        rng = random.Random(f"{self._seed} {workflow.id} {index}")
        coming = [call.agent for call in workflow.calls[index + 1 : index + 1 + HORIZON]]
        for agent in coming:
            others = [other for other in self._agents if other != agent]
            wrong = rng.random() < self._noise and others
            steps.append({rng.choice(others) if wrong else agent: 1.0})
        missing = HORIZON - len(steps)
        return [*steps, *([{}] * missing)], [1.0] * len(steps) + [0.0] * missing


class Markov(Lookahead):
    """The agents that came after the last two, or after the last when those were never seen, as counted so far."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, ...], Counter[str | None]] = defaultdict(Counter)

    def teach(self, workload: Workload) -> None:
        for workflow in workload.workflows:
            for index in range(len(workflow.calls)):
                self._count(workflow, index)
            self.over(workflow)

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        self._count(workflow, index)
        return super().started(workflow, index, now)

    def over(self, workflow: Workflow) -> None:
        self._add([call.agent for call in workflow.calls[-2:]], None)

    def steps(self, workflow: Workflow, index: int) -> tuple[list[Step], list[float]]:
        latest = tuple(call.agent for call in workflow.calls[max(0, index - 1) : index + 1])
        states: dict[tuple[str, ...], float] = {latest: 1.0}
        steps: list[Step] = []
        survival: list[float] = []
        for _ in range(HORIZON):
            reached: dict[tuple[str, ...], float] = defaultdict(float)
            for state, probability in states.items():
                counts = self._next.get(state) or self._next.get(state[-1:]) or Counter()
                total = sum(counts.values())
                for agent, count in counts.items():
                    if agent is not None:
                        reached[(*state[-1:], agent)] += probability * count / total
            alive = sum(reached.values())
            step: dict[str, float] = defaultdict(float)
            for state, probability in reached.items():
                step[state[-1]] += probability / alive
            steps.append(step)
            survival.append(alive)
            states = reached
        return steps, survival

    def _count(self, workflow: Workflow, index: int) -> None:
        if index:
            before = [call.agent for call in workflow.calls[max(0, index - 2) : index]]
            self._add(before, workflow.calls[index].agent)

    def _add(self, before: list[str], agent: str | None) -> None:
        for length in {1, min(2, len(before))}:
            self._next[tuple(before[-length:])][agent] += 1


class Graph(Source):
    """KVFlow: steps to execution in the graph that the application declares, here all transitions of the workload."""

    def __init__(self, workload: Workload) -> None:
        successors: dict[str, dict[str, None]] = defaultdict(dict)
        for workflow in workload.workflows:
            for before, after in zip(workflow.calls, workflow.calls[1:], strict=False):
                successors[before.agent][after.agent] = None
        self._graph = StepGraph({agent: list(after) for agent, after in successors.items()})

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        return Word(steps_table(self._graph, [workflow.calls[index].agent]))


class Survival(Source):
    """CacheSage's survival, or CacheScout's, from transitions counted on line."""

    def __init__(self, cachescout: bool) -> None:
        self._transitions = Transitions()
        self._table = cachescout_table if cachescout else survival_table

    def teach(self, workload: Workload) -> None:
        for workflow in workload.workflows:
            for call in workflow.calls:
                self._transitions.observe(workflow.id, call.agent)
            self.over(workflow)

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        agent = workflow.calls[index].agent
        self._transitions.observe(workflow.id, agent)
        return Word(self._table(self._transitions, agent))

    def over(self, workflow: Workflow) -> None:
        self._transitions.end(workflow.id)


class Tools(Source):
    """Continuum: at a tool's call all of the workflow is pinned for as long as tools of its kind take to return."""

    def __init__(self) -> None:
        self._times = ReturnTimes()
        self._ended: dict[str, float] = {}

    def started(self, workflow: Workflow, index: int, now: float) -> Word | None:
        if index and (ended := self._ended.pop(workflow.id, None)) is not None:
            self._times.observe(_tool(workflow, index - 1), max(0.0, now - ended))
        return None

    def ended(self, workflow: Workflow, index: int, now: float) -> Word | None:
        if index + 1 == len(workflow.calls):
            return None
        self._ended[workflow.id] = now
        ttl = self._times.ttl(_tool(workflow, index), PIN_BENEFIT_S, PIN_COST_PER_S)
        agents = {call.agent for call in workflow.calls[: index + 1]}
        return Word(pin_table(sorted(agents), now + ttl) if ttl else {})

    def over(self, workflow: Workflow) -> None:
        self._ended.pop(workflow.id, None)


def _tool(workflow: Workflow, index: int) -> str:
    call = workflow.calls[index]
    return call.tool or f"after {call.agent}"


def source_of(contestant: Contestant, workload: Workload, seed: int) -> Source | None:
    """The source that a policy of a benchmark takes its tables from; None if it needs none."""
    agents = workload.agents()
    match contestant.forecasts:
        case "none":
            return None
        case "uniform":
            return Uniform(agents)
        case "markov":
            return Markov()
        case "oracle" | "noisy":
            return Oracle(agents, contestant.noise, seed)
        case "graph":
            return Graph(workload)
        case "transitions":
            return Survival(cachescout=contestant.parameters.get("form") == "multiplicative")
        case "tools":
            return Tools()
        case "predictor":
            from serving.benchmark.learned_forecasts import LearnedForecasts  # torch, which nobody else needs

            return LearnedForecasts(contestant.trained)
