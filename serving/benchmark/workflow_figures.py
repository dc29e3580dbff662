"""Calls -> one row of figures for each workflow, which every mean, share and ratio is made of."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.benchmark.records import CallRecord

Pair = tuple[int, str]
"""Round and workflow: with the same pair, two policies were given the same work."""


@dataclass(frozen=True, slots=True)
class WorkflowFigures:
    """One workflow of one round. Seconds and tokens; what failed calls used is in no sum.

    Attributes:
        latency_s: from the first call sent to the end of the last.
        latency_without_tools_s: the same without the time in which nothing but tools ran.
        ttft_s: times to first token, summed over the `ttft_calls` calls that had one.
    """

    round: int
    workflow: str
    latency_s: float
    latency_without_tools_s: float
    ttft_s: float
    ttft_calls: int
    prompt: int
    hit_device: int
    hit_host: int
    output: int
    calls: int
    failed_calls: int

    @property
    def pair(self) -> Pair:
        return self.round, self.workflow

    @property
    def hit(self) -> int:
        return self.hit_device + self.hit_host


def workflow_figures(calls: Iterable[CallRecord]) -> list[WorkflowFigures]:
    """The workflows of one policy at one point, by round and name. A call recorded twice counts once, as the last."""
    grouped: dict[Pair, dict[int, CallRecord]] = defaultdict(dict)
    for call in calls:
        grouped[call.round, call.workflow][call.index] = call
    return [_figures(pair, list(grouped[pair].values())) for pair in sorted(grouped)]


def time_to_first_token(call: CallRecord) -> float | None:
    if call.error is not None or call.first_token_s is None:
        return None
    return call.first_token_s - call.sent_s


def _figures(pair: Pair, calls: Sequence[CallRecord]) -> WorkflowFigures:
    served = [call for call in calls if call.error is None]
    ttfts = [ttft for call in calls if (ttft := time_to_first_token(call)) is not None]
    start, end = min(call.sent_s for call in calls), max(call.end_s for call in calls)
    return WorkflowFigures(
        round=pair[0],
        workflow=pair[1],
        latency_s=end - start,
        latency_without_tools_s=end - start - _tools_alone(calls, end),
        ttft_s=sum(ttfts),
        ttft_calls=len(ttfts),
        prompt=sum(call.prompt_tokens for call in served),
        hit_device=sum(call.hit_device for call in served),
        hit_host=sum(call.hit_host for call in served),
        output=sum(call.output_tokens for call in served),
        calls=len(calls),
        failed_calls=len(calls) - len(served),
    )


def _tools_alone(calls: Sequence[CallRecord], end: float) -> float:
    """Seconds before `end` in which a tool ran and no call did. Agents of a workflow may run side by side."""
    running = [(call.sent_s, call.end_s) for call in calls]
    pauses = [(call.end_s, min(call.end_s + call.pause_s, end)) for call in calls if call.end_s < end]
    return _covered(running + pauses) - _covered(running)


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(itertools.chain(spans)):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
