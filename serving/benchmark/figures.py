"""Records -> results: the figures of every policy at every point, and what they say of one another, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.benchmark.bands import band, saturated_samples
from serving.benchmark.contrast import Contrast, contrast, default_baseline, way
from serving.benchmark.policy_figures import Rounds, evicted_share, policy_figures
from serving.benchmark.records import Records
from serving.benchmark.workflow_figures import WorkflowFigures, workflow_figures

SCHEMA = 1
Results = dict[str, Any]
"""The `results` of a benchmark; keys as `results_of` and `policy_figures` write them."""


def results_of(
    records: Records, suite: str, about: Mapping[str, Any], complete: bool, baseline: str | None = None
) -> Results:
    """All figures of a run, finished or interrupted.

    Args:
        about: free facts for the reader: command, model, versions. Nothing of the machine's paths.
        complete: whether every round that was planned has finished.
        baseline: what policies are compared with; by default the first of `BASELINES` that a point has.

    Raises:
        ValueError: no point has the baseline that was asked for.
    """
    names = [name for point in records.points for name in records.policies(point)]
    if baseline is not None and names and baseline not in names:
        raise ValueError(f"baseline {baseline!r} was not run; choose one of: {', '.join(sorted(set(names)))}")
    return {
        "schema": SCHEMA,
        "suite": suite,
        "about": dict(about),
        "complete": complete,
        "rounds": len({number for _, _, number in records.rounds}),
        "points": [_point(records, key, baseline) for key in records.points],
    }


def _point(records: Records, key: str, wanted: str | None) -> dict[str, Any]:
    rounds: dict[str, Rounds] = {name: records.of(key, name) for name in records.policies(key)}
    workflows = {name: workflow_figures(call for _, calls in each for call in calls) for name, each in rounds.items()}
    baseline = default_baseline(list(rounds), wanted)
    over = _contrasts(workflows, baseline)
    start = "lru" if "lru" in rounds else baseline
    ways, missing = way(_contrasts(workflows, start))
    label, why = band(
        _evicted(rounds, workflows, baseline),
        _saturated(rounds, baseline),
        over,
    )
    return {
        "key": key,
        "point": dict(records.points[key].values),
        "baseline": baseline,
        "policies": {name: policy_figures(rounds[name], workflows[name]) for name in rounds},
        "ratios": {name: each.as_dict() for name, each in over.items()},
        "way_from": start,
        "way": ways,
        "way_missing": missing,
        "band": label,
        "band_why": why,
    }


def _contrasts(workflows: Mapping[str, Sequence[WorkflowFigures]], over: str | None) -> dict[str, Contrast]:
    if over is None:
        return {}
    return {name: contrast(each, workflows[over], over) for name, each in workflows.items() if name != over}


def _first_with_figure(rounds: Mapping[str, Rounds], baseline: str | None) -> list[str]:
    """Where to look for what the baseline may not have counted: itself, plain LRU, then the others but `unlimited`."""
    order = [baseline, "lru", *rounds]
    return [name for name in dict.fromkeys(order) if name is not None and name in rounds and name != "unlimited"]


def _evicted(
    rounds: Mapping[str, Rounds], workflows: Mapping[str, Sequence[WorkflowFigures]], baseline: str | None
) -> float | None:
    shares = (evicted_share(rounds[name], workflows[name]) for name in _first_with_figure(rounds, baseline))
    return next((share for share in shares if share is not None), None)


def _saturated(rounds: Mapping[str, Rounds], baseline: str | None) -> float | None:
    for name in _first_with_figure(rounds, baseline):
        share = saturated_samples([sample for record, _ in rounds[name] for sample in record.timeline])
        if share is not None:
            return share
    return None
