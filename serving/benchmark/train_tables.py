"""The figures of a study of predictors in words and as a table, for the page and the terminal alike."""

from __future__ import annotations

from typing import Any

from predictor_actor.base import HORIZON
from serving.benchmark.bootstrap import excludes
from serving.benchmark.result_text import TextTable

STEPS = range(1, HORIZON + 1)


def predictor_table(figures: dict[str, Any]) -> TextTable:
    """One row for each predictor: shares that were right at k = 1..K, likelihood, calibration, survival."""
    headers = [
        "predictor",
        *(f"top-1, k={k}" for k in STEPS),
        "95 % at k=1",
        *(f"top-2, k={k}" for k in STEPS),
        "nll, k=1",
        f"nll, k={HORIZON}",
        "calibration error, k=1",
        f"Brier of survival, k={HORIZON}",
    ]
    return TextTable("Predictors", headers, [_row(name, each) for name, each in figures["predictors"].items()])


def short_table(figures: dict[str, Any]) -> TextTable:
    """The main columns, for a terminal."""
    full = predictor_table(figures)
    kept = [0, *STEPS, HORIZON + 2, 2 * HORIZON + 2, 2 * HORIZON + 4]
    headers = ["predictor", *(f"top-1 k={k}" for k in STEPS), "top-2 k=1", "nll k=1", "cal. err."]
    return TextTable(full.title, headers, [[row[place] for place in kept] for row in full.rows])


def in_words(figures: dict[str, Any]) -> list[str]:
    """What was tested, and whether the model is better than the chains."""
    lines = [
        f"{figures['workflows']} workflows, {figures['calls']} calls, {figures['agents']} agents; tested on "
        f"{figures['test_share']:.0%} of the workflows ({figures['split']}), {figures['seeds']} seeds; "
        f"{figures['parameters']:,} parameters, trained in {figures['train_s']:.1f} s."
    ]
    lines += [_gain(best["k"], f"{best['name']}, the better chain", best["gain"]) for best in figures["best_chain"]]
    for name, gains in figures["gains"].items():
        lines += [_gain(k, name, gain) for k, gain in zip(STEPS, gains, strict=True)]
    if figures.get("left_out"):
        lines.append(f"{figures['left_out']} traces could not be read: {'; '.join(figures['problems'][:3])}")
    return lines


def _gain(k: int, name: str, gain: list[float] | None) -> str:
    """By how much the model's top-1 is above that of another."""
    if gain is None:
        return f"k={k}: too few workflows for an interval against {name}."
    points = f"{100 * gain[0]:+.1f} points ({100 * gain[1]:+.1f} to {100 * gain[2]:+.1f})"
    verdict = "beyond noise" if excludes(gain, 0) else "within noise"
    return f"k={k}: top-1 of the model against {name}: {points}, {verdict}."


def _row(name: str, each: dict[str, Any]) -> list[str]:
    interval = each["top1_interval"][0]
    return [
        name,
        *(f"{share:.3f}" for share in each["top1"]),
        "–" if interval is None else f"{interval[1]:.3f} to {interval[2]:.3f}",
        *(f"{share:.3f}" for share in each["top2"]),
        f"{each['nll'][0]:.3f}",
        f"{each['nll'][-1]:.3f}",
        f"{each['ece'][0]:.3f}",
        f"{each['brier'][-1]:.3f}",
    ]
