"""Curves of predictors in words, as tables, and as one HTML page with their pictures."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from predictor_actor.base import HORIZON
from serving.benchmark.curves_tables import curve_table, drift_table, in_words
from serving.benchmark.plot_style import as_svg, policy_style, styled
from serving.benchmark.predictor_curves import Curve
from serving.benchmark.report import html_table, page_of

TRACES, NOISE = "workflows learned from", "share of calls learned from that are another agent's"


def write_page(figures: dict[str, Any], path: Path) -> None:
    """Writes the page; its folder is made."""
    drawn = (
        (
            curve_picture(figures["sizes"], TRACES, logarithmic=True),
            "Accuracy by the number of workflows learned from.",
        ),
        (curve_picture(figures["noise"], NOISE), "Accuracy by the noise in what is learned from; the test has none."),
        (drift_picture(figures["drift"]), "Top-1 at k=1 of the latest workflows, while the call graph changes."),
    )
    tables = (curve_table(figures["sizes"], "workflows"), curve_table(figures["noise"], "noise"), drift_table(figures))
    lines = "".join(f"<li>{escape(line)}</li>" for line in in_words(figures))
    sections = [
        f"<figure>{as_svg(picture, f'p{number}', caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        + html_table(table)
        for number, ((picture, caption), table) in enumerate(zip(drawn, tables, strict=True), 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "Predictors by what they have seen"
    path.write_text(page_of(title, f"<h1>{title}</h1><ul>{lines}</ul>{''.join(sections)}"), encoding="utf-8")


@styled
def curve_picture(curve: Curve, label: str, logarithmic: bool = False) -> Figure:
    """Top-1 above and negative log likelihood below, one column for each k, a line for each predictor."""
    figure = Figure(figsize=(11, 6.4))
    grid = figure.subplots(2, HORIZON, sharex=True, sharey="row", squeeze=False)
    names = list(curve[0]["predictors"])
    places = [point["at"] for point in curve]
    for row, (measure, name) in zip(grid, (("top1", "top-1"), ("nll", "negative log likelihood")), strict=True):
        for k, axes in enumerate(row):
            for predictor in names:
                values = [point["predictors"][predictor][measure][k] for point in curve]
                axes.plot(places, values, label=predictor, **policy_style(predictor, names))
            if logarithmic:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(FixedLocator(places))
                axes.xaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: f"{place:,.0f}"))
                axes.tick_params(axis="x", labelrotation=60)
            else:
                axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        row[0].set_ylabel(name)
    for k, axes in enumerate(grid[0]):
        axes.set_title(f"k = {k + 1}")
    figure.supxlabel(label, fontsize=11)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(names))
    return figure


@styled
def drift_picture(drift: dict[str, Any]) -> Figure:
    """Accuracy over the latest workflows against time, with a line where the graph changes."""
    figure = Figure(figsize=(11, 4.4))
    axes = figure.subplots()
    names = list(drift["top1"])
    for name in names:
        style: dict[str, Any] = {**policy_style(name, names), "markevery": max(1, len(drift["at"]) // 12)}
        axes.plot(drift["at"], drift["top1"][name], label=name, **style)
    axes.axvline(drift["change_at"], color="#444444", linewidth=1.0)
    axes.set(xlabel="workflows", ylabel=f"top-1 at k=1, latest {drift['window']} workflows")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
