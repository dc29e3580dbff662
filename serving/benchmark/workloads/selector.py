"""A group chat of six agents and the supervisor who selects the next speaker, with a set predictability."""

from __future__ import annotations

import math
import random

from serving.benchmark.workloads.base import Workflow, Workload
from serving.benchmark.workloads.draft import ANCHOR_FIRST, Draft, anchors_of, check_layout
from serving.benchmark.workloads.registry import check_choice, check_number, check_whole, register

AGENTS = ("researcher", "programmer", "analyst", "critic", "editor", "librarian")
SUPERVISOR = "supervisor"
TURNS = (8, 16)
ACCURACY, ENTROPY = "accuracy", "entropy"


@register("selector")
def selector(
    seed: int,
    *,
    workflows: int = 32,
    layout: str = ANCHOR_FIRST,
    scale: float = 1.0,
    predictability: float = 0.78,
    measure: str = ACCURACY,
    anchor_tokens: int = 3000,
    supervisor_tokens: int = 800,
    tool_s: float = 1.0,
) -> Workload:
    """Six agents with large anchors; before each of their calls, the supervisor is called, to select who is next.

    The six agents stand in a circle, in an order that the seed decides. After an agent comes its successor in the
    circle with some probability p, and otherwise one of the other five (the agent itself among them), each as likely.
    A workflow starts with any of them and has 8 to 16 turns.

    Args:
        scale: multiplies all lengths.
        predictability: from 0 to 1, in terms of `measure`.
        measure: `accuracy`: predictability is p, the share of turns in which the usual successor comes next. From 1/6
            on, that is also the accuracy of the best order-1 predictor of the next agent, supervisor left out. Below
            1/6 no setting of six agents makes the best guess as bad as that: a predictor that names the usual
            successor is right with probability p, and one that has learned to name any other agent with (1 - p) / 5,
            which is at most 1/5. `entropy`: predictability is CacheScout's R = 1 - H(next | current) / H(next),
            supervisor left out; p is chosen to fit, from R = 0 at p = 1/6 to R = 1 at p = 1. A small value such as
            .12 has its plain meaning here (p is about .45).
        anchor_tokens: of each of the six.
        supervisor_tokens: of the supervisor's anchor.
        tool_s: time of the tool that half of the turns end with, in seconds.

    Raises:
        WorkloadError: a value out of range.
    """
    check_whole("selector", "workflows", workflows)
    check_whole("selector", "anchor_tokens", anchor_tokens)
    check_whole("selector", "supervisor_tokens", supervisor_tokens)
    check_number("selector", "predictability", predictability, 0, 1)
    check_number("selector", "tool_s", tool_s)
    check_choice("selector", "measure", measure, (ACCURACY, ENTROPY))
    check_layout("selector", layout)
    usual = predictability if measure == ACCURACY else usual_successor_probability(predictability)
    circle = list(AGENTS)
    random.Random(f"selector/{seed}/circle").shuffle(circle)
    anchors = anchors_of("selector", {SUPERVISOR: supervisor_tokens, **dict.fromkeys(AGENTS, anchor_tokens)})
    written = (
        _chat(Draft(f"selector-{seed}-{number}", anchors, layout), circle, usual, tool_s, f"selector/{seed}/{number}")
        for number in range(workflows)
    )
    return Workload("selector", tuple(written)).scaled(scale)


def usual_successor_probability(r: float) -> float:
    """The p for which six agents in a circle have R = 1 - H(next | current) / H(next) = `r`; p is from 1/6 to 1."""
    low, high = 1 / len(AGENTS), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if 1 - _entropy(middle) / math.log(len(AGENTS)) < r:
            low = middle
        else:
            high = middle
    return high


def _entropy(usual: float) -> float:
    """Of the next agent given the current one, in nats."""
    others = len(AGENTS) - 1
    rest = (1 - usual) / others
    return -(usual * math.log(usual)) - (others * rest * math.log(rest) if rest > 0 else 0.0)


def _chat(draft: Draft, circle: list[str], usual: float, tool_s: float, seed: str) -> Workflow:
    dice = random.Random(seed)
    draft.add("task", dice.randint(60, 250))
    agent = dice.choice(circle)
    for turn in range(dice.randint(*TURNS)):
        if turn > 0:
            agent = _next(agent, circle, usual, dice)
        draft.call(SUPERVISOR, dice.randint(8, 20), readers=(SUPERVISOR,))
        with_tool = dice.random() < 0.5
        draft.call(
            agent, dice.randint(80, 250), pause_s=tool_s if with_tool else 0.0, tool="tool" if with_tool else None
        )
        if with_tool:
            draft.add("result", dice.randint(50, 400))
    return draft.workflow()


def _next(agent: str, circle: list[str], usual: float, dice: random.Random) -> str:
    successor = circle[(circle.index(agent) + 1) % len(circle)]
    if dice.random() < usual:
        return successor
    return dice.choice([other for other in circle if other != successor])
