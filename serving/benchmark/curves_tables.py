"""Curves of predictors as tables and in words, for the page and the terminal alike."""

from __future__ import annotations

from typing import Any

from serving.benchmark.predictor_curves import Curve
from serving.benchmark.predictor_study import MODEL
from serving.benchmark.result_text import NONE, TextTable, difference


def curve_table(curve: Curve, axis: str) -> TextTable:
    """One row for each point and k: the best chain and the model, and what the model gains, in points with 95 %."""
    headers = [axis, "k", "best chain", "its top-1", f"{MODEL}'s", "gain, points", "its nll", f"{MODEL}'s"]
    rows = []
    for point in curve:
        at = f"{point['at']:,}" if isinstance(point["at"], int) else f"{point['at']:.0%}"
        for k, best in enumerate(point["best_chain"]):
            chain, model = point["predictors"][best["name"]], point["predictors"][MODEL]
            shares = [f"{each['top1'][k]:.3f}" for each in (chain, model)]
            losses = [f"{each['nll'][k]:.3f}" for each in (chain, model)]
            rows.append([at, str(k + 1), best["name"], *shares, difference(best["gain"]), *losses])
    return TextTable(f"By {axis}", headers, rows)


def drift_table(figures: dict[str, Any]) -> TextTable:
    """One row for each predictor: top-1 at k=1 before the graph changes, at the worst and at the end."""
    drift = figures["drift"]
    rows = []
    for name in drift["top1"]:
        shares = [f"{drift[moment][name]:.3f}" for moment in ("before", "least", "end")]
        after = drift["recovered_after"][name]
        rows.append([name, *shares, NONE if after is None else str(after)])
    headers = ["predictor", "top-1 before", "least after", "at the end", "recovered after workflows"]
    return TextTable(f"The graph changes at workflow {drift['change_at']}", headers, rows)


def in_words(figures: dict[str, Any]) -> list[str]:
    """What was tried, and what the tables do not say of themselves."""
    drift = figures["drift"]
    lines = [
        f"{figures['workflows']} workflows, {figures['calls']} calls, {figures['agents']} agents; tested on "
        f"{figures['test_share']:.0%} of the workflows, {figures['seeds']} seeds. The best chain is the best of "
        "Markov's of order 1 to 3 by top-1 at that k.",
        f"Drift: {MODEL} is trained on the first {drift['trained_on']} workflows and its chain goes on learning; "
        f"retrained, it is trained anew every {drift['window']} workflows on the latest {2 * drift['window']}. "
        f"From workflow {drift['change_at']} on every agent is called where another one was.",
        f"Recovered: the first {drift['window']} workflows or more of the new graph alone in which top-1 is at least "
        "95 % of what it was just before.",
    ]
    if figures["left_out"]:
        lines.append(f"{figures['left_out']} traces could not be read: {'; '.join(figures['problems'][:3])}")
    return lines
