"""The workflows of a workload again and again, for a queue that lasts longer than a short trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serving.benchmark.workloads.base import Call, Segment, Workflow, Workload, WorkloadError

Rename = Callable[[str], str]


def repeated(workload: Workload, times: int) -> Workload:
    """The workload `times` over. Each repetition is new work: its workflows and their own texts have new names.

    Texts that several workflows of the workload share, such as the prompts of agents, stay shared by all repetitions.
    Repetitions have no arrival times, since nobody has recorded any.

    Raises:
        WorkloadError: less than once.
    """
    if times < 1:
        raise WorkloadError(f"workload {workload.name!r}: repeat is {times}; give at least 1")
    shared = _shared(workload)
    again = [_copy(workflow, number, shared) for number in range(2, times + 1) for workflow in workload.workflows]
    return replace(workload, workflows=(*workload.workflows, *again))


def renamed(workflow: Workflow, name: Rename, text: Rename) -> Workflow:
    """The same workflow under the name, and of the texts, that the two functions make of its own.

    Args:
        name: of the id of a workflow, its own or its parent's.
        text: of the id of a segment.
    """

    def call(old: Call) -> Call:
        return replace(old, prompt=tuple(Segment(text(one.id), one.tokens, one.output_of) for one in old.prompt))

    parent = None if workflow.parent is None else name(workflow.parent)
    return replace(workflow, id=name(workflow.id), calls=tuple(call(one) for one in workflow.calls), parent=parent)


def _copy(workflow: Workflow, number: int, shared: frozenset[str]) -> Workflow:
    def name(old: str) -> str:
        return f"{old}, time {number}"

    return replace(renamed(workflow, name, lambda id: id if id in shared else name(id)), arrival_s=None)


def _shared(workload: Workload) -> frozenset[str]:
    """The segments that more than one workflow uses."""
    first: dict[str, str] = {}
    for workflow, _, call in workload.calls():
        for segment in call.prompt:
            first.setdefault(segment.id, workflow.id)
    return frozenset(
        segment.id
        for workflow, _, call in workload.calls()
        for segment in call.prompt
        if first[segment.id] != workflow.id
    )
