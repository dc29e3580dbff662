"""The call graph: who has been called after whom, how often, and what calls of each agent are like. Learned online."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor_actor.agents import MAX_AGENTS, Agents
from predictor_actor.base import END_S, OUTPUT_TOKENS, PROMPT_TOKENS, START_S, AgentFacts, Prefix

Floats = npt.NDArray[np.float32]

# Running means of an agent's calls: columns of `CallGraph.means`.
LOG_PROMPT, LOG_OUTPUT, LOG_PAUSE, PLACE = range(4)
MEAN_RATE = 0.05


@dataclass(frozen=True, slots=True)
class GraphView:
    """A graph as it is at one moment; nobody changes it any more.

    Attributes:
        names: the N agents.
        counts: float32 of shape (N + 1, N + 1): how often column's agent followed row's. Row 0 is the start of a
            workflow, column 0 its end, agent i has row and column i + 1.
        means: float32 of shape (N + 1, 4), running means of log(1 + prompt tokens), log(1 + output tokens),
            log(1 + pause before the call in seconds) and of its place in the workflow (place / (place + 10)); row 0
            is empty.
        facts: what is known of each agent apart from its calls.
        chances: float32 of shape (N + 1,), how many calls of anybody have begun since each agent became known; index 0
            is empty.
    """

    names: tuple[str, ...]
    counts: Floats
    means: Floats
    facts: tuple[AgentFacts, ...]
    chances: Floats

    def transitions(self) -> Floats:
        """P(column | row) of shape (N + 1, N + 1); rows of agents that were never left are 0."""
        totals = self.counts.sum(axis=1, keepdims=True)
        chances: Floats = np.divide(self.counts, totals, out=np.zeros_like(self.counts), where=totals > 0)
        return chances


class CallGraph:
    """Directed and weighted, with START and END.

    Args:
        memory: of each agent's followers, counts are halved when they add up to this: what was seen lately counts
            more, and a graph that has changed is learned anew within as many calls of each agent.
        max_agents: beyond it the agent that was called longest ago is forgotten.
    """

    def __init__(self, memory: int = 128, max_agents: int = MAX_AGENTS) -> None:
        if memory < 2:
            raise ValueError(f"memory is {memory}; give at least 2 calls")
        self.agents = Agents(max_agents)
        self.memory = memory
        self._counts = np.zeros((9, 9), np.min_scalar_type(memory))
        self._means = np.zeros((9, 4), np.float32)
        self._known_at = np.zeros(9, np.uint32)
        self._calls = 0
        self._facts: dict[str, AgentFacts] = {}
        self.version = 0

    @property
    def calls(self) -> int:
        """How many calls have been observed, those before a restored view included as far as it tells."""
        return self._calls

    @property
    def counts(self) -> npt.NDArray[np.integer]:
        """As `GraphView.counts`, and not to be changed."""
        size = len(self.agents) + 1
        return self._counts[:size, :size]

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        """Makes agents known that may not have been called yet."""
        for name, known in facts.items():
            self._number(name)
            if known != AgentFacts():
                self._facts[name] = known
        self.version += 1

    def observe(self, prefix: Prefix) -> int:
        """A call has begun: counts the edge to its agent. Returns the agent's number; 0 if there is no call."""
        if not prefix.agents:
            return 0
        number = self._number(prefix.agents[-1])
        self._count(self._before(prefix), number)
        self._calls += 1
        self._look(prefix, number)
        self.version += 1
        return number

    def ended(self, prefix: Prefix) -> None:
        """A workflow has ended: counts the edge to END."""
        if prefix.agents:
            self._count(self.agents.get(prefix.agents[-1]) or -1, 0)
            self.version += 1

    def view(self) -> GraphView:
        """A copy of the graph as it is now."""
        size = len(self.agents) + 1
        names = self.agents.names
        facts = tuple(self._facts.get(name, AgentFacts()) for name in names)
        chances = (self._calls - self._known_at[:size].astype(np.int64)).astype(np.float32)
        return GraphView(names, self.counts.astype(np.float32), self._means[:size].copy(), facts, chances)

    def restore(self, view: GraphView) -> None:
        """Goes on from a view; for a graph that is still empty.

        Raises:
            ValueError: it is not.
        """
        if len(self.agents):
            raise ValueError(f"the graph knows {len(self.agents)} agents already; restore into a new one")
        for name in view.names[: self.agents.limit]:
            self._number(name)
        size = len(self.agents) + 1
        self._counts[:size, :size] = np.minimum(view.counts[:size, :size], self.memory)
        self._means[:size] = view.means[:size]
        self._calls = int(view.chances.max(initial=0))
        self._known_at[:size] = self._calls - view.chances[:size].astype(np.int64)
        self._facts = {name: facts for name, facts in zip(view.names, view.facts, strict=True) if name in self.agents}
        self.version += 1

    def nbytes(self) -> int:
        """Memory of what grows with the number of agents, names apart."""
        return self._counts.nbytes + self._means.nbytes + self._known_at.nbytes

    def _before(self, prefix: Prefix) -> int:
        """The row of what preceded the latest call: 0 the start, -1 something that is not known."""
        if prefix.length == 1:
            return 0
        return (self.agents.get(prefix.agents[-2]) or -1) if len(prefix.agents) > 1 else -1

    def _number(self, name: str) -> int:
        number, fresh = self.agents.use(name)
        while number >= len(self._counts):
            self._counts = np.pad(self._counts, (0, len(self._counts)))
            self._means = np.pad(self._means, ((0, len(self._means)), (0, 0)))
            self._known_at = np.pad(self._known_at, (0, len(self._known_at)))
        if fresh:
            self._counts[number] = self._counts[:, number] = 0
            self._means[number] = 0
            self._known_at[number] = self._calls
            for gone in [known for known in self._facts if known not in self.agents]:
                del self._facts[gone]
        return number

    def _count(self, row: int, column: int) -> None:
        if row < 0:
            return
        counts = self._counts[row]
        counts[column] += 1
        if counts.sum() >= self.memory:
            counts >>= 1

    def _look(self, prefix: Prefix, number: int) -> None:
        """Moves the running means of the agent, and those of the call before it, whose output is known by now."""
        latest = prefix.numbers[-1].tolist()
        place = prefix.length / (prefix.length + 10)
        self._move(number, LOG_PROMPT, math.log1p(max(latest[PROMPT_TOKENS], 0.0)))
        self._move(number, PLACE, place)
        if len(prefix.agents) < 2:
            return
        previous = prefix.numbers[-2].tolist()
        if (before := self.agents.get(prefix.agents[-2])) and previous[OUTPUT_TOKENS] > 0:
            self._move(before, LOG_OUTPUT, math.log1p(previous[OUTPUT_TOKENS]))
        pause = latest[START_S] - previous[END_S]
        if math.isfinite(pause):
            self._move(number, LOG_PAUSE, math.log1p(max(pause, 0.0)))

    def _move(self, number: int, column: int, value: float) -> None:
        if not math.isfinite(value):
            return
        mean = self._means[number]
        mean[column] = value if mean[column] == 0 else mean[column] + MEAN_RATE * (value - mean[column])
