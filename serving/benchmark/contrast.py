"""Two policies on the same work: ratios with intervals, and how much of what is possible a policy reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.benchmark.bootstrap import FEWEST, Array, estimate, excludes
from serving.benchmark.workflow_figures import WorkflowFigures

BASELINES = ("sglang-lru", "stock", "lru")
IDEALS = ("oracle", "belady", "unlimited")
# Half of less than this is not a quantity: a share of the prompt tokens, and a part of the latency.
LEAST_DISTANCE = 0.01

Estimate = list[float] | None
"""[value, low, high] of a 95 % interval; None with fewer than `FEWEST` pairs."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A policy over another, on the workflows that both had; ratios of means, and a difference of shares.

    Attributes:
        pairs: (round, workflow) pairs that both policies had and neither failed in.
        left_out_failed: pairs left out since a call failed under either.
        unequal: pairs among `pairs` that did not take the same number of calls.
    """

    over: str
    pairs: int
    left_out_failed: int
    unequal: int
    latency_mean: Estimate
    latency_without_tools_mean: Estimate
    ttft_mean: Estimate
    hit_share_difference: Estimate

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def contrast(policy: Sequence[WorkflowFigures], over: Sequence[WorkflowFigures], name: str) -> Contrast:
    """Compare a policy with the one called `name`; the order of the workflows does not matter."""
    others = {figures.pair: figures for figures in over}
    matched = [(mine, others[mine.pair]) for mine in sorted(policy, key=lambda f: f.pair) if mine.pair in others]
    good = [(mine, other) for mine, other in matched if not mine.failed_calls and not other.failed_calls]
    rounds: dict[int, list[tuple[float, ...]]] = {}
    for mine, other in good:
        rounds.setdefault(mine.round, []).append((*_columns(mine), *_columns(other)))
    latency, without_tools, ttft, hit = estimate(
        [np.array(rows, dtype=np.float64) for rows in rounds.values()],
        (
            lambda sums: sums[..., 0] / sums[..., 6],
            lambda sums: sums[..., 1] / sums[..., 7],
            lambda sums: _share(sums, 2, 3) / _share(sums, 8, 9),
            lambda sums: _share(sums, 4, 5) - _share(sums, 10, 11),
        ),
    )
    unequal = sum(mine.calls != other.calls for mine, other in good)
    return Contrast(name, len(good), len(matched) - len(good), unequal, latency, without_tools, ttft, hit)


def _columns(figures: WorkflowFigures) -> tuple[float, ...]:
    return (
        figures.latency_s,
        figures.latency_without_tools_s,
        figures.ttft_s,
        figures.ttft_calls,
        figures.hit,
        figures.prompt,
    )


def _share(sums: Array, part: int, whole: int) -> Array:
    share: Array = sums[..., part] / sums[..., whole]
    return share


def default_baseline(policies: Sequence[str], wanted: str | None = None) -> str | None:
    """What policies are compared with: the one asked for, or the first of `BASELINES`, or None if there is none."""
    names = BASELINES if wanted is None else (wanted,)
    return next((name for name in names if name in policies), None)


def way(
    contrasts: Mapping[str, Contrast],
) -> tuple[dict[str, dict[str, dict[str, float | None]]], dict[str, dict[str, str]]]:
    """How much of the distance from one policy to each ideal the others go: 0 none, 1 all of it.

    A part of a distance that is noise would be noise divided by noise. So there is no number where the ideal is not
    better, where its interval contains "no difference", or where it is less than `LEAST_DISTANCE` better.

    Args:
        contrasts: every policy over the one where the way begins.

    Returns:
        policy -> "hit" | "latency" -> "to_<ideal>" -> part of the way, or None; and for what is None for all policies,
        "hit" | "latency" -> "to_<ideal>" -> why.
    """
    ways: dict[str, dict[str, dict[str, float | None]]] = {name: {"hit": {}, "latency": {}} for name in contrasts}
    missing: dict[str, dict[str, str]] = {"hit": {}, "latency": {}}
    for ideal in IDEALS:
        for figure in ("hit", "latency"):
            column = f"to_{ideal}"
            why = _no_way(contrasts.get(ideal), ideal, figure)
            if why is not None:
                missing[figure][column] = why
            whole = None if why else _gain(contrasts[ideal], figure)
            for name, each in contrasts.items():
                gain = _gain(each, figure)
                ways[name][figure][column] = None if whole is None or gain is None else gain / whole
    return ways, missing


def _no_way(ideal: Contrast | None, name: str, figure: str) -> str | None:
    """Why there is no way to speak of, or None if there is."""
    if ideal is None:
        return f"{name} was not run here"
    gain = _gain(ideal, figure)
    if gain is None:
        return f"{name} and {ideal.over} have fewer than {FEWEST} finished workflows in common"
    unit = "of the prompt tokens" if figure == "hit" else "of the latency"
    measured = ideal.hit_share_difference if figure == "hit" else ideal.latency_mean
    if not excludes(measured, 0.0 if figure == "hit" else 1.0):
        return f"the distance from {ideal.over} to {name}, {gain:.1%} {unit}, is within noise"
    if gain < LEAST_DISTANCE:
        return f"{name} is only {gain:.1%} {unit} better than {ideal.over}, less than {LEAST_DISTANCE:.0%}"
    return None


def _gain(each: Contrast, figure: str) -> float | None:
    """How much better, as a part: positive is better."""
    if figure == "hit":
        return each.hit_share_difference[0] if each.hit_share_difference else None
    return 1 - each.latency_mean[0] if each.latency_mean else None
