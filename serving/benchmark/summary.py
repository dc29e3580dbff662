"""What the results say, in plain words: computed from the figures, never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.benchmark.bands import NOTHING_EVICTED, SATURATED
from serving.benchmark.bootstrap import FEWEST, excludes
from serving.benchmark.sweep import Point, label

# See the table in `bootstrap`.
ENOUGH_ROUNDS = 3

Estimate = Sequence[float]


def summary(results: Mapping[str, Any]) -> list[str]:
    """Sentences: cautions first, then what differs and what does not, point by point."""
    points = results["points"]
    return [*_cautions(results), *(line for point in points for line in _differences(point, points))]


def _cautions(results: Mapping[str, Any]) -> list[str]:
    points: Sequence[Point] = results["points"]
    every = [figures for point in points for figures in point["policies"].values()]
    lines = []
    if not results["complete"]:
        lines.append("The run was interrupted: only the rounds that had finished are counted.")
    if not any(figures["workflows"] for figures in every):
        return [*lines, "No workflow finished, so there is nothing to compare."]
    if results["rounds"] < ENOUGH_ROUNDS:
        lines.append(
            f"Rounds: {results['rounds']}. With fewer than {ENOUGH_ROUNDS} the intervals are too narrow if rounds "
            "differ from one another; of one round they say nothing of it."
        )
    failed, calls = sum(figures["failed_calls"] for figures in every), sum(figures["calls"] for figures in every)
    if failed:
        lines.append(
            f"{failed:,} of {calls:,} calls failed; their workflows are left out of latencies and comparisons."
        )
    unequal = sum(over["unequal"] for point in points for over in point["ratios"].values())
    if unequal:
        lines.append(f"{unequal:,} compared pairs of workflows did not take the same number of calls.")
    without = [label(point, points) for point in points if point["policies"] and point["baseline"] is None]
    if without:
        lines.append(f"There is nothing to compare with (no baseline) at: {'; '.join(without)}.")
    moot = [label(point, points) for point in points if point["band"] in (NOTHING_EVICTED, SATURATED)]
    if moot:
        lines.append(f"No choice of policy can matter, as the cache is never or always full, at: {'; '.join(moot)}.")
    ratios = [over["latency_mean"] for point in points for over in point["ratios"].values()]
    tried = [each for each in ratios if each is not None]
    if tried:
        beyond = sum(excludes(each, 1.0) for each in tried)
        lines.append(
            f"{beyond} of {len(tried)} comparisons of latency are beyond noise; "
            f"about {0.05 * len(tried):.1f} would be by chance if no policy made a difference."
        )
    return lines


def _differences(point: Point, points: Sequence[Point]) -> list[str]:
    where, base = label(point, points), point["baseline"]
    if not point["policies"]:
        return [f"{where}: no round finished."]
    if not point["ratios"]:
        return []
    latency = {name: over["latency_mean"] for name, over in point["ratios"].items()}
    hit = {name: over["hit_share_difference"] for name, over in point["ratios"].items()}
    return [
        f"{where} ({point['band']}: {point['band_why']}), latency against {base}: "
        + _sorted_out(latency, 1.0, ("less", "more"), lambda value: f"{100 * (value - 1):+.1f}", " %"),
        f"{where}, hit share against {base}: "
        + _sorted_out(hit, 0.0, ("lower", "higher"), lambda value: f"{100 * value:+.1f}", " points"),
    ]


def _sorted_out(
    figures: Mapping[str, Estimate | None], neutral: float, words: tuple[str, str], text: Any, unit: str
) -> str:
    """Who is below, who is above, and who cannot be told from the baseline."""
    known = sorted(((each, name) for name, each in figures.items() if each is not None), key=lambda pair: pair[0][0])
    below = [pair for pair in known if excludes(pair[0], neutral) and pair[0][0] < neutral]
    above = [pair for pair in known[::-1] if excludes(pair[0], neutral) and pair[0][0] > neutral]
    parts = []
    for word, pairs in zip(words, (below, above), strict=True):
        if pairs:
            listed = (f"{name} {text(each[0])}{unit} ({text(each[1])} to {text(each[2])})" for each, name in pairs)
            parts.append(f"{word} with {', '.join(listed)}")
    noise = [name for each, name in known if not excludes(each, neutral)]
    missing = [name for name, each in figures.items() if each is None]
    parts += [f"within noise: {', '.join(noise)}"] if noise else []
    parts += [f"not comparable (fewer than {FEWEST} workflows in common): {', '.join(missing)}"] if missing else []
    return "; ".join(parts) + "."
