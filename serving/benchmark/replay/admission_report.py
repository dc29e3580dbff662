"""What limits are worth, as one HTML page: latency against the limit, and a burst with its end."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from serving.benchmark.plot_style import as_svg, policy_style, styled
from serving.benchmark.replay.admission_study import NO_LIMIT, Burst, Mark, Outcome
from serving.benchmark.replay.admission_tables import mark_table, outcome_tables
from serving.benchmark.report import html_table, page_of


def write_page(
    outcomes: Sequence[Outcome], marks: Sequence[Mark], bursts: Sequence[Burst], title: str, path: Path
) -> None:
    """Writes the page; its folder is made."""
    drawn = [
        (
            latency_picture([one for one in outcomes if one.policy == policy]),
            f"{policy}: mean workflow latency by the limit, for each rate. Beside the numbers what finds one.",
        )
        for policy in dict.fromkeys(one.policy for one in outcomes)
    ]
    if bursts:
        drawn.append((burst_picture(bursts), "A burst of three times the capacity, shaded, and its end."))
    figures = "".join(
        f"<figure>{as_svg(picture, f'p{number}', escape(caption, quote=True))}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for number, (picture, caption) in enumerate(drawn, 1)
    )
    tables = "".join(map(html_table, [mark_table(marks), *outcome_tables(outcomes)]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(title, f"<h1>{escape(title)}</h1>{figures}{tables}"), encoding="utf-8")


@styled
def latency_picture(outcomes: Sequence[Outcome]) -> Figure:
    """A line for each rate over the fixed limits, and single marks for limits that are found."""
    limits = list(dict.fromkeys(one.limit for one in outcomes))
    order = sorted((limit for limit in limits if limit.isdecimal()), key=int)
    order += [limit for limit in limits if limit == NO_LIMIT]
    order += [limit for limit in limits if limit not in order]
    fixed = [limit for limit in order if limit.isdecimal() or limit == NO_LIMIT]
    rates = list(dict.fromkeys(f"{one.rate:g} x capacity" for one in outcomes))
    figure = Figure(figsize=(9, 4.6))
    axes = figure.subplots()
    for rate in rates:
        found = {one.limit: one.mean_s for one in outcomes if f"{one.rate:g} x capacity" == rate}
        style = policy_style(rate, rates)
        line = [(at, found[limit]) for at, limit in enumerate(fixed) if limit in found]
        alone = [(at, found[limit]) for at, limit in enumerate(order) if limit in found and limit not in fixed]
        axes.plot([at for at, _ in line], [value for _, value in line], label=rate, **style)
        axes.plot([at for at, _ in alone], [value for _, value in alone], **{**style, "linestyle": "none"})
    axes.set(ylabel="mean workflow latency (s)", xlabel="workflows let in at once", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(range(len(order))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter(order))
    axes.tick_params(axis="x", labelrotation=35)
    figure.legend(loc="outside right upper")
    return figure


@styled
def burst_picture(bursts: Sequence[Burst]) -> Figure:
    """For each limit who is in, who waits and the limit, and under them the hit share, over time."""
    figure = Figure(figsize=(10, 3.9 * len(bursts)))
    grid = figure.subplots(2 * len(bursts), 1, sharex=True, squeeze=False, height_ratios=[2, 1] * len(bursts))[:, 0]
    for burst, load, hits in zip(bursts, grid[::2], grid[1::2], strict=True):
        for axes in (load, hits):
            axes.axvspan(burst.begin_s, burst.end_s, color="#EEEEEE")
        for key, label, style in _LINES:
            seen = [(sample["at_s"], sample[key]) for sample in burst.timeline if key in sample]
            if seen:
                load.plot([at for at, _ in seen], [value for _, value in seen], label=label, **style)
        load.set_title(f"{burst.policy}, limit {burst.limit}", loc="left")
        load.set_ylabel("workflows")
        load.legend(loc="upper right")
        hits.plot([at for at, _ in burst.hits], [share for _, share in burst.hits], color="#009E73")
        hits.set(ylabel="hit share", ylim=(0, 1))
        hits.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    grid[-1].set_xlabel("seconds")
    return figure


_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("admitted", "inside", {"color": "#0072B2"}),
    ("held", "waiting", {"color": "#D55E00"}),
    ("limit", "limit", {"color": "#000000", "linestyle": "none", "marker": ".", "markersize": 3}),
)
