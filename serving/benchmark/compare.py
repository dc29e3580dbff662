"""Two results compared, before and after a change: what differs, and whether it is beyond noise.

The two runs were at different times, so nothing is paired. The interval of a ratio of two means comes from the means'
own intervals by the method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008), on
logarithms; that of a percentile from resampling the stored latencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from serving.benchmark.bootstrap import excludes, percentile_ratio
from serving.benchmark.figures import SCHEMA, Results
from serving.benchmark.result_text import TextTable, difference, ratio, seconds, share

MEANS = ("latency_mean_s", "latency_without_tools_mean_s", "ttft_mean_s")
LATENCY_PERCENTILES = {"latency_p50_s": 50, "latency_p95_s": 95}
SHARES = ("hit_share",)
# One run's figure without an interval: shown, but nothing is said of noise.
PLAIN = ("throughput_tokens_per_s", "failed_calls", "regret_tokens", "policy_cpu_s")
TITLES = {"latency": "latency", "latency_without_tools": "without tools", "ttft": "TTFT"}


class ResultsError(ValueError):
    """Results that cannot be read: says which file, and what to do."""


def load_results(path: Path) -> Results:
    """Results from results.json, or from the folder it is in.

    Raises:
        ResultsError: there is none, it is not JSON, or of another schema.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        results = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        raise ResultsError(f"{file}: no such file; give a results.json or the folder of a report") from None
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read ({error.strerror}); give a results.json that can") from error
    except orjson.JSONDecodeError as error:
        raise ResultsError(f"{file}: not JSON ({error}); give the results.json of a report") from error
    _check(results, str(file))
    return dict(results)


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str] = ("before", "after")
) -> dict[str, Any]:
    """What changed from one result to another, for points (by key) and policies that both have.

    Args:
        names: what the two are called in errors, such as their files.

    Returns:
        {"schema", "before", "after" (suite and about), "points": [{"key", "point", "policies": {policy: {figure:
        {"before", "after", "change", "kind", "beyond_noise"}}}, "only_before", "only_after" (policies)}],
        "only_before", "only_after" (keys of points)}. `change` is [value, low, high]: a ratio, or for
        shares a difference; `low` and `high` are None where there is no interval, and then `beyond_noise` is None too.

    Raises:
        ResultsError: the schema of either is another than this version's.
    """
    for results, name in zip((before, after), names, strict=True):
        _check(results, name)
    old = {point["key"]: point for point in before["points"]}
    new = {point["key"]: point for point in after["points"]}
    return {
        "schema": SCHEMA,
        "before": {"name": names[0], "suite": before["suite"], "about": before["about"]},
        "after": {"name": names[1], "suite": after["suite"], "about": after["about"]},
        "points": [_point(old[key], new[key]) for key in old if key in new],
        "only_before": [key for key in old if key not in new],
        "only_after": [key for key in new if key not in old],
    }


def comparison_tables(comparison: Mapping[str, Any]) -> list[TextTable]:
    """One table a point, one row for each policy and figure; `report.rich_table` shows them on a terminal."""
    tables = []
    for point in comparison["points"]:
        rows = [
            [f"{policy}: {_title(name)}", *_cells(name, change)]
            for policy, figures in point["policies"].items()
            for name, change in figures.items()
        ]
        for side in ("before", "after"):
            rows += [
                [policy, *("only here" if column == side else "–" for column in ("before", "after")), "–", "–"]
                for policy in point[f"only_{side}"]
            ]
        tables.append(TextTable(point["key"], ["figure", "before", "after", "change", "beyond noise"], rows))
    only = [[key, side] for side in ("before", "after") for key in comparison[f"only_{side}"]]
    return [*tables, TextTable("Points in one only", ["point", "in"], only)] if only else tables


def _check(results: Any, name: str) -> None:
    found = results.get("schema") if isinstance(results, Mapping) else None
    if found != SCHEMA:
        raise ResultsError(
            f"{name}: results of schema {found!r}, and this version of Forecache reads {SCHEMA}; "
            "make the report again from its records, or compare with the version that wrote it"
        )


def _point(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    before, after = old["policies"], new["policies"]
    return {
        "key": old["key"],
        "point": new["point"],
        "policies": {name: _changes(before[name], after[name]) for name in before if name in after},
        "only_before": [name for name in before if name not in after],
        "only_after": [name for name in after if name not in before],
    }


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in SHARES:
        changes[name] = _change(old, new, name, "difference", _difference(_estimate(old, name), _estimate(new, name)))
    for name in MEANS:
        changes[name] = _change(old, new, name, "ratio", _ratio(_estimate(old, name), _estimate(new, name)))
    for name, percent in LATENCY_PERCENTILES.items():
        one, other = (np.asarray(each["latencies"], dtype=np.float64) for each in (old, new))
        changes[name] = _change(old, new, name, "ratio", percentile_ratio(one, other, percent))
    for name in PLAIN:
        one, other = old[name], new[name]
        plain = [other / one, None, None] if one and other is not None else None
        changes[name] = _change(old, new, name, "ratio", plain)
    return changes


def _change(old: Mapping[str, Any], new: Mapping[str, Any], name: str, kind: str, change: Any) -> dict[str, Any]:
    known = change is not None and change[1] is not None
    beyond = excludes(change, 1.0 if kind == "ratio" else 0.0) if known else None
    return {"before": old[name], "after": new[name], "change": change, "kind": kind, "beyond_noise": beyond}


def _estimate(figures: Mapping[str, Any], name: str) -> list[float] | None:
    ends = figures["intervals"].get(name)
    return None if ends is None or figures[name] is None else [figures[name], *ends]


def _difference(old: Sequence[float] | None, new: Sequence[float] | None) -> list[float] | None:
    """new − old of two independent estimates with intervals."""
    if old is None or new is None:
        return None
    value = new[0] - old[0]
    below = math.hypot(max(0.0, new[0] - new[1]), max(0.0, old[2] - old[0]))
    above = math.hypot(max(0.0, new[2] - new[0]), max(0.0, old[0] - old[1]))
    return [value, value - below, value + above]


def _ratio(old: Sequence[float] | None, new: Sequence[float] | None) -> list[float] | None:
    """new ÷ old, as a difference of logarithms."""
    if old is None or new is None or min(*old, *new) <= 0:
        return None
    logs = _difference([math.log(each) for each in old], [math.log(each) for each in new])
    return None if logs is None else [math.exp(each) for each in logs]


def _title(name: str) -> str:
    for prefix in sorted(TITLES, key=len, reverse=True):
        if name.startswith(f"{prefix}_"):
            return f"{TITLES[prefix]} {name.removeprefix(f'{prefix}_').removesuffix('_s')}, s"
    return name.replace("_", " ")


def _cells(name: str, change: Mapping[str, Any]) -> list[str]:
    text = share if change["kind"] == "difference" else seconds
    value = change["change"]
    if value is None:
        shown = "–"
    elif value[1] is None:
        shown = f"{value[0]:.3f}"
    else:
        shown = difference(value) if change["kind"] == "difference" else ratio(value)
    beyond = {True: "yes", False: "no", None: "–"}[change["beyond_noise"]]
    return [text(change["before"]), text(change["after"]), shown, beyond]
