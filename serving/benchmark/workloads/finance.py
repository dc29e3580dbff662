"""Questions on long financial reports, as FinanceBench sets them: the same agents in the same order every time."""

from __future__ import annotations

import random

from serving.benchmark.workloads.base import Segment, Workflow, Workload
from serving.benchmark.workloads.draft import ANCHOR_FIRST, Draft, anchors_of, check_layout
from serving.benchmark.workloads.registry import check_number, check_whole, register

AGENTS = ("extractor", "analyst", "checker", "writer")


@register("finance")
def finance(
    seed: int,
    *,
    workflows: int = 32,
    layout: str = ANCHOR_FIRST,
    scale: float = 1.0,
    anchor_tokens: int = 800,
    document_tokens: int = 16000,
    passes: int = 2,
    shared_by: int = 1,
    tool_s: float = 0.5,
) -> Workload:
    """Four agents answer questions on one document, always in the order extractor, analyst, checker, writer.

    Args:
        scale: multiplies all lengths.
        document_tokens: mean length of a document; from half to one and a half times that.
        passes: questions on the document, one after the other; each is a pass through the four agents.
        shared_by: so many workflows, one after the other, have the same document; 1 gives each its own.
        tool_s: time of the calculation that follows the analyst, in seconds.

    Raises:
        WorkloadError: a value out of range.
    """
    for parameter, value in (
        ("workflows", workflows),
        ("anchor_tokens", anchor_tokens),
        ("passes", passes),
        ("shared_by", shared_by),
    ):
        check_whole("finance", parameter, value)
    check_whole("finance", "document_tokens", document_tokens, 2)
    check_number("finance", "tool_s", tool_s)
    check_layout("finance", layout)
    anchors = anchors_of("finance", dict.fromkeys(AGENTS, anchor_tokens))

    def document(number: int) -> Segment:
        dice = random.Random(f"finance/{seed}/document/{number}")
        return Segment(f"finance-{seed}/document-{number}", round(document_tokens * dice.uniform(0.5, 1.5)))

    written = (
        _answer(
            Draft(f"finance-{seed}-{number}", anchors, layout),
            document(number // shared_by),
            passes,
            tool_s,
            random.Random(f"finance/{seed}/{number}"),
        )
        for number in range(workflows)
    )
    return Workload("finance", tuple(written)).scaled(scale)


def _answer(draft: Draft, document: Segment, passes: int, tool_s: float, dice: random.Random) -> Workflow:
    draft.share(document)
    for _ in range(passes):
        draft.add("question", dice.randint(20, 80))
        draft.call("extractor", dice.randint(200, 400))
        draft.call("analyst", dice.randint(150, 300), pause_s=tool_s, tool="calculator")
        draft.add("figures", dice.randint(20, 60))
        draft.call("checker", dice.randint(80, 200))
        draft.call("writer", dice.randint(150, 350))
    return draft.workflow()
