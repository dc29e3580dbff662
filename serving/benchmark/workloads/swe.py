"""Software engineering on one repository, as SWE-bench sets it: one issue is one workflow."""

from __future__ import annotations

import math
import random

from serving.benchmark.workloads.base import Workflow, Workload
from serving.benchmark.workloads.draft import ANCHOR_FIRST, Draft, anchors_of, check_layout
from serving.benchmark.workloads.registry import check_number, check_whole, register

AGENTS = ("planner", "coder", "tester", "reviewer")
IN_THE_CODE = ("planner", "coder")
MOST_ATTEMPTS = 6
PLAN_AGAIN = 0.3
REJECT = 0.3


@register("swe")
def swe(
    seed: int,
    *,
    workflows: int = 32,
    layout: str = ANCHOR_FIRST,
    scale: float = 1.0,
    anchor_tokens: int = 1500,
    fail: float = 0.5,
    test_s: float = 10.0,
    shell_s: float = 1.0,
) -> Workload:
    """A planner, a coder, a tester and a reviewer fix an issue, with contexts of up to tens of thousands of tokens.

    The planner plans; the coder looks at one to four files (a shell command each) and writes a patch; the tester runs
    the tests. They fail with probability `fail`: then the coder tries again or, with probability .3, the planner plans
    again first. When they pass, the reviewer decides, and with probability .3 sends it back to the coder. After six
    attempts it ends in any case. Files are seen by planner and coder only, everything else by all.

    Args:
        scale: multiplies all lengths: a small one makes the workload fit a small model.
        test_s: median time of a test run, in seconds; log-normal, so some runs take several times as long.
        shell_s: median time of a shell command, likewise.

    Raises:
        WorkloadError: a value out of range.
    """
    check_whole("swe", "workflows", workflows)
    check_whole("swe", "anchor_tokens", anchor_tokens)
    check_number("swe", "fail", fail, 0, 1)
    check_number("swe", "test_s", test_s)
    check_number("swe", "shell_s", shell_s)
    check_layout("swe", layout)
    anchors = anchors_of("swe", dict.fromkeys(AGENTS, anchor_tokens))
    written = (
        _solve(Draft(f"swe-{seed}-{number}", anchors, layout), fail, test_s, shell_s, f"swe/{seed}/{number}")
        for number in range(workflows)
    )
    return Workload("swe", tuple(written)).scaled(scale)


def _solve(draft: Draft, fail: float, test_s: float, shell_s: float, seed: str) -> Workflow:
    dice = random.Random(seed)
    draft.add("issue", dice.randint(200, 800))
    draft.add("repository", dice.randint(3000, 6000), IN_THE_CODE)
    draft.call("planner", dice.randint(300, 700))
    for _ in range(MOST_ATTEMPTS):
        for _ in range(dice.randint(1, 4)):
            draft.call("coder", dice.randint(40, 120), pause_s=_time(dice, shell_s), tool="shell", readers=IN_THE_CODE)
            draft.add("file", dice.randint(500, 3000), IN_THE_CODE)
        draft.call("coder", dice.randint(300, 900))
        draft.call("tester", dice.randint(50, 150), pause_s=_time(dice, test_s), tool="tests")
        draft.add("log", dice.randint(300, 2000))
        if dice.random() < fail:
            if dice.random() < PLAN_AGAIN:
                draft.call("planner", dice.randint(200, 500))
            continue
        draft.call("reviewer", dice.randint(100, 300))
        if dice.random() >= REJECT:
            break
    return draft.workflow()


def _time(dice: random.Random, median_s: float) -> float:
    return round(median_s * math.exp(dice.gauss(0, 0.6)), 3)
