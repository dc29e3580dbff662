"""Many teams of agents on one cluster: some are popular, some workflows are long, and sometimes many come at once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serving.benchmark.workloads.base import Segment, Workflow, Workload
from serving.benchmark.workloads.draft import ANCHOR_FIRST, Draft, anchors_of
from serving.benchmark.workloads.registry import check_number, check_whole, register

ROLES = ("planner", "worker", "critic")
ROUNDS_MEDIAN, ROUNDS_SIGMA, MOST_ROUNDS = 4, 0.7, 24
RESULT_MEDIAN, RESULT_SIGMA, MOST_RESULT = 500, 0.8, 4000
PLAN_AGAIN, CRITICISE = 0.3, 0.5
BURST_S = 2.0
# About what a call takes, in seconds: a child starts when its parent is likely to have come so far.
CALL_S = 6.0


@dataclass(frozen=True, slots=True)
class _Start:
    at_s: float
    team: int


@register("fleet")
def fleet(
    seed: int,
    *,
    workflows: int = 400,
    scale: float = 1.0,
    teams: int = 32,
    skew: float = 1.0,
    anchor_tokens: int = 1500,
    per_s: float = 1.0,
    burst: int = 24,
    burst_every_s: float = 60.0,
    children: float = 0.15,
    tool_s: float = 3.0,
) -> Workload:
    """Teams of a planner, a worker and a critic, each with prompts of its own, on workflows of very different length.

    A round: the planner plans (always in the first, later with probability .3), the worker works with a tool (median
    `tool_s`) whose result of some hundred tokens all see, the critic speaks with probability .5. The number of rounds
    is log-normal with a median of 4, 24 at most. A child begins with its parent's context as its worker sees it.

    Args:
        workflows: in all; those that are begun by others among them.
        scale: multiplies all lengths.
        teams: the popularity of the n-th is 1 / n^`skew`.
        anchor_tokens: of each agent.
        per_s: workflows that arrive in a second, at random, bursts left out.
        burst: so many workflows of one team arrive within two seconds, every `burst_every_s`; 0 for none.
        children: share of workflows that start a child, which does a part of the work beside them.

    Raises:
        WorkloadError: a value out of range.
    """
    check_whole("fleet", "workflows", workflows)
    check_whole("fleet", "teams", teams)
    check_whole("fleet", "anchor_tokens", anchor_tokens)
    check_whole("fleet", "burst", burst, 0)
    for name, value, high in (("skew", skew, math.inf), ("children", children, 1.0), ("tool_s", tool_s, math.inf)):
        check_number("fleet", name, value, 0, high)
    check_number("fleet", "per_s", per_s, 1e-6)
    check_number("fleet", "burst_every_s", burst_every_s, 1e-3)
    anchors = [anchors_of("fleet", {f"{role}-{team}": anchor_tokens for role in ROLES}) for team in range(teams)]
    dice = random.Random(f"fleet/{seed}")
    weights = [1 / (number + 1) ** skew for number in range(teams)]
    starts = _starts(dice, weights, per_s, burst, burst_every_s)
    written: list[Workflow] = []
    for number, start in enumerate(starts):
        if len(written) >= workflows:
            break
        written += _family(f"fleet-{seed}-{number}", start, anchors[start.team], children, tool_s)
    written = sorted(written[:workflows], key=lambda one: one.arrival_s or 0.0)
    return Workload("fleet", tuple(written)).scaled(scale)


def _starts(
    dice: random.Random, weights: list[float], per_s: float, burst: int, burst_every_s: float
) -> Iterator[_Start]:
    """Without end, in the order of time but for the last of a burst."""
    at, next_burst = 0.0, burst_every_s
    teams = range(len(weights))
    while True:
        at += dice.expovariate(per_s)
        if burst and at >= next_burst:
            team = dice.choice(teams)
            yield from sorted(
                (_Start(next_burst + dice.uniform(0, BURST_S), team) for _ in range(burst)), key=lambda one: one.at_s
            )
            next_burst += burst_every_s
        yield _Start(at, dice.choices(teams, weights)[0])


def _family(name: str, start: _Start, anchors: Mapping[str, Segment], children: float, tool_s: float) -> list[Workflow]:
    """A workflow and, perhaps, its child."""
    dice = random.Random(name)
    draft = Draft(name, anchors, ANCHOR_FIRST)
    draft.add("task", dice.randint(100, 400))
    rounds = min(MOST_ROUNDS, max(1, round(ROUNDS_MEDIAN * math.exp(dice.gauss(0, ROUNDS_SIGMA)))))
    fork = dice.randrange(rounds) if dice.random() < children else None
    child: Workflow | None = None
    for number in range(rounds):
        _round(draft, dice, start.team, tool_s, number == 0)
        if number == fork:
            child = _child(draft, dice, start, tool_s)
    parent = draft.workflow(start.at_s)
    return [parent] if child is None else [parent, child]


def _round(draft: Draft, dice: random.Random, team: int, tool_s: float, first: bool) -> None:
    if first or dice.random() < PLAN_AGAIN:
        draft.call(f"planner-{team}", dice.randint(60, 200))
    pause_s = round(tool_s * math.exp(dice.gauss(0, 0.6)), 3)
    draft.call(f"worker-{team}", dice.randint(40, 160), pause_s=pause_s, tool="tool")
    draft.add("result", min(MOST_RESULT, max(20, round(RESULT_MEDIAN * math.exp(dice.gauss(0, RESULT_SIGMA))))))
    if dice.random() < CRITICISE:
        draft.call(f"critic-{team}", dice.randint(20, 80))


def _child(parent: Draft, dice: random.Random, start: _Start, tool_s: float) -> Workflow:
    so_far = parent.workflow().calls
    child = parent.fork(f"{parent.id}-child")
    child.add("errand", dice.randint(50, 150))
    for _ in range(dice.randint(1, 3)):
        pause_s = round(tool_s * math.exp(dice.gauss(0, 0.6)), 3)
        child.call(f"worker-{start.team}", dice.randint(40, 160), pause_s=pause_s, tool="tool")
        child.add("result", dice.randint(100, 800))
    return child.workflow(start.at_s + sum(CALL_S + call.pause_s for call in so_far), parent.id)
