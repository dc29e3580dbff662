"""The contract of predictors: who comes next in a workflow, for many workflows at once. Pure code, no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

HORIZON = 3
# No predictor looks further back; a path may be longer, and says so in `Prefix.length`.
PATH_LIMIT = 64
MAX_NAME = 256

Ending = Literal["final", "deleted", "idle", "open"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a workflow.

    Attributes:
        agent: who made it.
        prompt_tokens: length of the prompt.
        output_tokens: what was generated; 0 while the call runs.
        start_s: when it was sent, in seconds since the workflow's first call; None: not known.
        end_s: when its answer was complete, likewise.
        tool: what its answer asked for (a tool's name), None if nothing or not known.
        hidden: the hidden state of the last prompt token after the final norm, as float16 bytes; None: not kept.
    """

    agent: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    start_s: float | None = None
    end_s: float | None = None
    tool: str | None = None
    hidden: bytes | None = None


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What is known of an agent before it has ever been called.

    Attributes:
        anchor_tokens: length of its system prompt and tools.
        anchor_hashes: one integer for each piece of the anchor (a block, a message), equal for equal text.
    """

    anchor_tokens: int = 0
    anchor_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkflowTrace:
    """All of a workflow that has ended, or of one as far as it has come (`ending` is "open").

    Attributes:
        started_at: seconds since 1970 of its first call; 0 if not known.
        agents: facts of the agents that appear in it, as far as they are known.
    """

    workflow: str
    calls: tuple[Call, ...]
    ending: Ending = "final"
    started_at: float = 0.0
    agents: Mapping[str, AgentFacts] = field(default_factory=dict)
    source: str = ""


# Columns of `Prefix.numbers`.
PROMPT_TOKENS, OUTPUT_TOKENS, START_S, END_S = range(4)

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Prefix:
    """A workflow as far as it has come: its latest call has just begun, what comes after it is asked for.

    Attributes:
        agents: who made its latest calls, oldest first, the one that runs last; empty if it has made none.
        numbers: float32 of shape (len(agents), 4), for each call the tokens of its prompt and of its output, and when
            it started and ended, in seconds since the workflow's first call; NaN where that is not known. Output and
            end of the latest call are not known yet, whatever stands there.
        length: how many calls it has made in all, those before `agents` included; at least len(agents).
        hidden: of the latest call, as `Call.hidden`.
        workflow: its id; only what knows the future asks for it.
    """

    agents: Sequence[str]
    numbers: Numbers
    length: int
    hidden: bytes | None = None
    workflow: str = ""

    @classmethod
    def of(cls, calls: Sequence[Call], workflow: str = "") -> Prefix:
        """The prefix that a workflow's calls make: the last PATH_LIMIT of them, and their count."""
        kept = calls[-PATH_LIMIT:]
        hidden = kept[-1].hidden if kept else None
        return cls([call.agent for call in kept], numbers_of(kept), len(calls), hidden, workflow)


def numbers_of(calls: Sequence[Call]) -> Numbers:
    """The columns of `Prefix.numbers`; what is not known is NaN."""
    rows = [(call.prompt_tokens, call.output_tokens, call.start_s, call.end_s) for call in calls]
    return np.array(rows, np.float32).reshape(len(calls), 4)


def prefixes_of(trace: WorkflowTrace) -> list[Prefix]:
    """The prefixes a workflow had, one as each of its calls began."""
    names = [call.agent for call in trace.calls]
    numbers = numbers_of(trace.calls)
    found = []
    for length in range(1, len(names) + 1):
        kept = slice(max(0, length - PATH_LIMIT), length)
        found.append(Prefix(names[kept], numbers[kept], length, trace.calls[length - 1].hidden, trace.workflow))
    return found


@dataclass(frozen=True, slots=True)
class Forecasts:
    """What is expected of B workflows, in the next K calls of each, over N agents.

    Attributes:
        agents: names of the N agents, in the order of the arrays.
        steps: float32 of shape (B, K, N + 1): for each k, the probability that the k-th next call is made by each
            agent, or (last column) that the workflow has ended before it. Rows sum to 1; what is ended stays ended.
        model: name and version of the predictor.
    """

    agents: tuple[str, ...]
    steps: npt.NDArray[np.float32]
    model: str

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, start: int, end: int) -> Forecasts:
        """Those of some of the workflows."""
        return Forecasts(self.agents, self.steps[start:end], self.model)

    def survival(self) -> npt.NDArray[np.float32]:
        """s(1)..s(K): the probability that a k-th next call is made. Shape (B, K), never rising with k."""
        alive: npt.NDArray[np.float32] = 1.0 - self.steps[:, :, -1]
        return np.minimum.accumulate(alive.clip(0.0, 1.0), axis=1)

    def confidence(self) -> npt.NDArray[np.float32]:
        """The probability of what is thought most likely to come next. Shape (B,)."""
        top: npt.NDArray[np.float32] = self.steps[:, 0].max(axis=1)
        return top

    def of(self, row: int, least: float = 0.0) -> list[dict[str, float]]:
        """P_1..P_K of one workflow, given that it is still alive then: agents with more than `least` alone."""
        result = []
        for step in self.steps[row]:
            alive = float(1.0 - step[-1])
            kept = np.flatnonzero(step[:-1] > least * alive) if alive > 0 else ()
            result.append({self.agents[agent]: float(step[agent]) / alive for agent in kept})
        return result


class Predictor(ABC):
    """Forecasts the coming agents of workflows, and learns from those it sees.

    Contract, proved for every implementation by tests/unit/test_predictor_contract.py:

    * `forecast` answers any batch: empty paths, agents never seen, paths of any length, no workflow at all;
    * its rows are distributions, and a workflow that has ended stays ended: the last column never falls with k;
    * it is pure: the same prefixes give the same forecasts until something is observed;
    * it does not depend on who else is in the batch;
    * what it keeps is bounded, whatever it observes.
    """

    name: ClassVar[str]

    @abstractmethod
    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        """What comes after the latest call of each workflow, for K = HORIZON calls."""

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        """Hears of agents, which may not have been called yet."""
        return

    def observe(self, prefix: Prefix) -> None:
        """Learns from a workflow whose latest call has just begun. Called once for each call."""
        return

    def ended(self, prefix: Prefix) -> None:
        """Learns that a workflow has ended after its latest call."""
        return

    def learn(self, trace: WorkflowTrace) -> None:
        """Observes a whole workflow, call by call, and its end if it has come."""
        self.introduce(trace.agents)
        prefixes = prefixes_of(trace)
        for prefix in prefixes:
            self.observe(prefix)
        if prefixes and trace.ending != "open":
            self.ended(prefixes[-1])
