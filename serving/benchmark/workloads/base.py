"""What a benchmark serves: workflows, their calls, and which parts of the prompts are equal text. Pure data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache


class WorkloadError(ValueError):
    """A workload that cannot be made or served as asked: says what is wrong, with which value, and the remedy."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt. Within a workload equal ids are equal text, and so have equal lengths.

    Attributes:
        id: names the text.
        tokens: its length, at least 1.
        output_of: n means that this is what call n of the same workflow (counted from 0, an earlier one) generated;
            `tokens` is then that call's `output_tokens`.
    """

    id: str
    tokens: int
    output_of: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM request of one agent.

    Attributes:
        prompt: the segments in order; at least one.
        output_tokens: how many tokens to generate, at least 1.
        pause_s: seconds from the end of this call to the start of the workflow's next: a tool runs, a user thinks.
        tool: what runs meanwhile, if that is known.
    """

    agent: str
    prompt: tuple[Segment, ...]
    output_tokens: int
    pause_s: float = 0.0
    tool: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.prompt)


@dataclass(frozen=True, slots=True)
class Workflow:
    """Calls that follow one another.

    Attributes:
        arrival_s: when it starts, in seconds from the start of the workload; None if nothing is known of that.
        parent: the id of the workflow that started this one.
    """

    id: str
    calls: tuple[Call, ...]
    arrival_s: float | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a workload amounts to.

    Distinct tokens are those of distinct prefixes: what a cache that never evicts would hold of the prompts. A text
    counts again for each different text before it, since its keys and values differ. Outputs do not count.

    Attributes:
        longest_prompt: in tokens.
        live_footprint: the distinct tokens of a single workflow, mean over the workflows; times the workflows that
            run at once, it is about what a cache must hold to lose nothing that is still in use.
    """

    workflows: int
    calls: int
    prompt_tokens: int
    output_tokens: int
    distinct_tokens: int
    longest_prompt: int
    live_footprint: float

    @property
    def distinct_share(self) -> float:
        """Distinct tokens by prompt tokens: 1 minus this is the hit rate that no cache can exceed."""
        return self.distinct_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """Workflows to serve, in the order in which they start.

    Attributes:
        skipped: workflows that the source held and that were left out because they could not be read.
    """

    name: str
    workflows: tuple[Workflow, ...]
    skipped: int = 0

    def calls(self) -> Iterator[tuple[Workflow, int, Call]]:
        """Every call, with its workflow and its index in it."""
        for workflow in self.workflows:
            for index, call in enumerate(workflow.calls):
                yield workflow, index, call

    def agents(self) -> tuple[str, ...]:
        """The agents' names, in the order in which they first appear."""
        return tuple(dict.fromkeys(call.agent for _, _, call in self.calls()))

    def anchors(self) -> dict[str, tuple[Segment, ...]]:
        """For each agent the segments that all its prompts start with; empty if they start differently.

        An agent that is called once only has its whole prompt as anchor.
        """
        anchors: dict[str, tuple[Segment, ...]] = {}
        for _, _, call in self.calls():
            known = anchors.get(call.agent)
            anchors[call.agent] = call.prompt if known is None else _common_start(known, call.prompt)
        return anchors

    def statistics(self) -> Statistics:
        """Counts of everything; takes time in proportion to the number of segments in all prompts."""
        together = _PrefixTree()
        alone = 0
        for workflow in self.workflows:
            tree = _PrefixTree()
            for call in workflow.calls:
                together.add(call.prompt)
                tree.add(call.prompt)
            alone += tree.tokens
        lengths = [call.prompt_tokens for _, _, call in self.calls()]
        return Statistics(
            workflows=len(self.workflows),
            calls=len(lengths),
            prompt_tokens=sum(lengths),
            output_tokens=sum(call.output_tokens for _, _, call in self.calls()),
            distinct_tokens=together.tokens,
            longest_prompt=max(lengths, default=0),
            live_footprint=alone / len(self.workflows) if self.workflows else 0.0,
        )

    def scaled(self, factor: float) -> Workload:
        """The same workload with every length times `factor`, rounded, at least 1 token; pauses stay.

        Equal segments stay equal and an output as long as its call's `output_tokens`, so what is shared stays shared.

        Raises:
            WorkloadError: a factor that is not a positive number.
        """
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise WorkloadError(f"workload {self.name!r}: scale is {factor!r}; give a positive number, 1 for no change")
        if factor == 1:
            return self

        def length(tokens: int) -> int:
            return max(1, round(tokens * factor))

        @cache
        def segment(old: Segment) -> Segment:
            return Segment(old.id, length(old.tokens), old.output_of)

        def call(old: Call) -> Call:
            return replace(
                old, prompt=tuple(segment(each) for each in old.prompt), output_tokens=length(old.output_tokens)
            )

        workflows = (replace(old, calls=tuple(call(each) for each in old.calls)) for old in self.workflows)
        return replace(self, workflows=tuple(workflows))

    def limited(self, workflows: int) -> Workload:
        """The first `workflows` of it, all of them if there are fewer.

        Raises:
            WorkloadError: a limit below 1.
        """
        if workflows < 1:
            raise WorkloadError(f"workload {self.name!r}: a limit of {workflows} workflows; give at least 1")
        return replace(self, workflows=self.workflows[:workflows])

    def check(self, max_prompt_tokens: int) -> None:
        """Is every prompt with its output at most `max_prompt_tokens` long (an engine's context, or its pool)?

        Raises:
            WorkloadError: names the call that needs most, its size, and the scale that makes it fit.
        """
        worst = max(self.calls(), key=lambda each: each[2].prompt_tokens + each[2].output_tokens, default=None)
        if worst is None:
            return
        workflow, index, call = worst
        needed = call.prompt_tokens + call.output_tokens
        if needed <= max_prompt_tokens:
            return
        factor = math.floor(100 * max_prompt_tokens / needed) / 100
        remedy = f"scale the workload by {factor:g} or less, or " if factor > 0 else ""
        raise WorkloadError(
            f"workload {self.name!r}: workflow {workflow.id!r}, call {index} ({call.agent}) needs {needed} tokens"
            f" ({call.prompt_tokens} of prompt, {call.output_tokens} of output), and {max_prompt_tokens} are allowed;"
            f" {remedy}serve it with a longer context"
        )


class _PrefixTree:
    """Counts the tokens of distinct prefixes."""

    __slots__ = ("_children", "tokens")

    def __init__(self) -> None:
        self._children: dict[tuple[int, str], int] = {}
        self.tokens = 0

    def add(self, prompt: tuple[Segment, ...]) -> None:
        node = 0
        for segment in prompt:
            edge = (node, segment.id)
            child = self._children.get(edge)
            if child is None:
                child = self._children[edge] = len(self._children) + 1
                self.tokens += segment.tokens
            node = child


def _common_start(one: tuple[Segment, ...], other: tuple[Segment, ...]) -> tuple[Segment, ...]:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left.id != right.id:
            break
        length += 1
    return one[:length]
