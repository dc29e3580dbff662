"""The pictures of a report, each a function from results to a matplotlib figure that nothing global knows of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from serving.benchmark.plot_style import POOL, TIERS, policy_style, shorten, styled
from serving.benchmark.sweep import NOISE, Point, Slice, number

Figure3 = tuple[float, float, float]
"""A value with the ends of its interval."""
Reader = Callable[[Point, str], Figure3 | None]

UNITS = {
    "concurrency": "workflows at once",
    "device_tokens": "device pool (tokens)",
    "host_tokens": "host pool (tokens)",
}
LATENCY, RATIO, HIT = "mean workflow latency (s)", "latency ÷ baseline's", "hit share of prompt tokens"


def mean(figure: str) -> Reader:
    """Reads a mean of a policy and its interval off a point."""

    def read(point: Point, policy: str) -> Figure3 | None:
        figures = point["policies"].get(policy)
        if figures is None or figures[figure] is None:
            return None
        low, high = figures["intervals"].get(figure) or (figures[figure],) * 2
        return figures[figure], low, high

    return read


def ratio(figure: str) -> Reader:
    """Reads a ratio over the baseline off a point."""

    def read(point: Point, policy: str) -> Figure3 | None:
        found = point["ratios"].get(policy, {}).get(figure)
        return None if found is None else (found[0], found[1], found[2])

    return read


@styled
def along_axis(row: Slice, policies: Sequence[str]) -> Figure:
    """Latency, also over the baseline's, and hit share against the axis of a slice; of one point, a row a policy."""
    shown = [name for name in policies if any(name in point["policies"] for point in row.points)]
    readers = [(mean("latency_mean_s"), LATENCY), (mean("hit_share"), HIT)]
    if any(point["ratios"] for point in row.points):
        readers.insert(1, (ratio("latency_mean"), RATIO))
    if len(row.points) == 1:
        return _dots(row.points[0], shown, policies, readers)
    axis_label = UNITS.get(str(row.axis), str(row.axis).replace("_", " "))
    return _lines(row, shown, policies, readers, axis_label)


@styled
def along_noise(row: Slice, policies: Sequence[str]) -> Figure:
    """Hit share, and latency over the baseline's, against the forecasts' noise."""
    shown = [name for name in policies if any(name in point["policies"] for point in row.points)]
    readers = [(ratio("latency_mean"), RATIO), (mean("hit_share"), HIT)]
    return _lines(row, shown, policies, readers, f"{NOISE} in the forecasts")


@styled
def tiers(point: Point, policies: Sequence[str]) -> Figure:
    """Where the prompt tokens of each policy came from, as stacked bars."""
    shown = [name for name in policies if point["policies"].get(name, {}).get("hit_device") is not None]
    figure = Figure(figsize=(9, 1.5 + 0.34 * len(shown)))
    axes = figure.subplots()
    rows, left = np.arange(len(shown)), np.zeros(len(shown))
    for key, name, colour, hatch in TIERS:
        widths = np.array([point["policies"][policy][key] for policy in shown], dtype=np.float64)
        axes.barh(rows, widths, left=left, label=name, color=colour, hatch=hatch, edgecolor="#444444", linewidth=0.5)
        left += widths
    axes.set(xlim=(0, 1), xlabel="share of prompt tokens", ylim=(len(shown) - 0.4, -0.6))
    axes.set_yticks(rows, [shorten(name) for name in shown])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=len(TIERS))
    return figure


@styled
def distributions(point: Point, policies: Sequence[str]) -> Figure:
    """Share of workflows that took at most so long (the empirical distribution function)."""
    shown = [name for name in policies if point["policies"].get(name, {}).get("latencies")]
    figure = Figure(figsize=(9, max(3.8, 1.0 + 0.27 * len(shown))))
    axes = figure.subplots()
    for at, policy in enumerate(shown):
        seconds = point["policies"][policy]["latencies"]
        shares = np.arange(1, len(seconds) + 1) / len(seconds)
        every = max(1, len(seconds) // 6)
        style = policy_style(policy, policies)
        axes.step(seconds, shares, where="post", label=shorten(policy), markevery=(at % every, every), **style)
    axes.set(xlabel="workflow latency (s)", ylabel="share of workflows", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.legend(loc="outside right upper")
    return figure


@styled
def pool_timeline(point: Point, policies: Sequence[str]) -> Figure:
    """One engine's device pool over one round, under each of a few policies, as stacked areas."""
    figure = Figure(figsize=(9, 1.1 + 2.3 * len(policies)))
    columns = figure.subplots(len(policies), 1, sharex=True, squeeze=False)[:, 0]
    for axes, policy in zip(columns, policies, strict=True):
        samples = point["policies"][policy]["timeline"]
        at = [sample["at_s"] for sample in samples]
        parts = [[sample.get(key, 0.0) / 1000 for sample in samples] for key, *_ in POOL]
        areas = axes.stackplot(
            at, parts, labels=[name for _, name, *_ in POOL], colors=[colour for *_, colour, _ in POOL]
        )
        for area, (*_, hatch) in zip(areas, POOL, strict=True):
            area.set(hatch=hatch, edgecolor="#444444", linewidth=0.3)
        axes.set_title(shorten(policy, 60), loc="left")
        axes.set_ylabel("thousand tokens")
        axes.margins(x=0, y=0)
    columns[-1].set_xlabel("seconds since the round began")
    figure.legend(*columns[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(POOL))
    return figure


def _lines(
    row: Slice, shown: Sequence[str], policies: Sequence[str], readers: Sequence[tuple[Reader, str]], axis_label: str
) -> Figure:
    """Panels side by side with one line for each policy, set apart so that no whisker hides another."""
    figure = Figure(figsize=(4.0 * len(readers) + 2, max(4.2, 0.8 + 0.27 * len(shown))))
    places = [number(point["point"].get(row.axis)) or 0.0 for point in row.points]
    # Points of a sweep double more often than not: even steps keep all of them apart.
    even = list(range(len(places)))
    for axes, (read, name) in zip(figure.subplots(1, len(readers)), readers, strict=True):
        for at, policy in enumerate(shown):
            found = [(x, value) for x, point in zip(even, row.points, strict=True) if (value := read(point, policy))]
            if found:
                shift = 0.5 * (at / max(1, len(shown) - 1) - 0.5) if len(shown) > 1 else 0.0
                _whiskers(axes, [x + shift for x, _ in found], [value for _, value in found], policy, policies)
        axes.set(xlabel=axis_label, ylabel=name, xlim=(-0.5, len(places) - 0.5))
        axes.xaxis.set_major_locator(FixedLocator(even))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FixedFormatter([f"{place:,g}" for place in places]))
        if max((len(f"{place:,g}") for place in places), default=0) * len(places) > 40:
            axes.tick_params(axis="x", labelrotation=35)
        axes.grid(visible=False, axis="x")
        _scale(axes, name)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)})
    labels = [name for name in dict.fromkeys(map(shorten, shown)) if name in handles]
    if labels:
        figure.legend([handles[name] for name in labels], labels, loc="outside right upper")
    return figure


def _whiskers(axes: Axes, at: Sequence[float], values: Sequence[Figure3], policy: str, policies: Sequence[str]) -> None:
    middle = np.array([value[0] for value in values])
    below = np.maximum(0.0, middle - [value[1] for value in values])
    above = np.maximum(0.0, np.array([value[2] for value in values]) - middle)
    style = policy_style(policy, policies)
    axes.errorbar(at, middle, yerr=(below, above), label=shorten(policy), capsize=2, elinewidth=0.9, **style)


def _dots(point: Point, shown: Sequence[str], policies: Sequence[str], readers: Sequence[tuple[Reader, str]]) -> Figure:
    """Panels side by side with one row for each policy."""
    figure = Figure(figsize=(4.0 * len(readers) + 2, 1.3 + 0.34 * len(shown)))
    for axes, (read, name) in zip(figure.subplots(1, len(readers), sharey=True), readers, strict=True):
        for at, policy in enumerate(shown):
            value = read(point, policy)
            if value is not None:
                ends = ([max(0.0, value[0] - value[1])], [max(0.0, value[2] - value[0])])
                style = {**policy_style(policy, policies), "linestyle": "none"}
                axes.errorbar([value[0]], [at], xerr=ends, capsize=3, **style)
        axes.set(xlabel=name, ylim=(len(shown) - 0.5, -0.5))
        axes.set_yticks(range(len(shown)), [shorten(policy) for policy in shown])
        axes.xaxis.set_major_locator(MaxNLocator(4))
        _scale(axes, name, horizontal=True)
    return figure


def _scale(axes: Axes, name: str, horizontal: bool = False) -> None:
    """Shares as per cent, and ratios with a line at "no difference".

    Nothing is forced to begin at 0: that would hide the differences the picture is for.
    """
    if name == RATIO:
        (axes.axvline if horizontal else axes.axhline)(1.0, color="black", linewidth=0.8)
    if name == HIT:
        axis: Axis = axes.xaxis if horizontal else axes.yaxis
        axis.set_major_formatter(PercentFormatter(1.0))
