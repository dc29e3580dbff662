"""Figures in words: numbers with their intervals, tables of a point, for the page and the terminal alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.benchmark.bootstrap import excludes
from serving.benchmark.contrast import IDEALS
from serving.benchmark.sweep import Point

NONE = "–"
RATIOS = ("latency_mean", "latency_without_tools_mean", "ttft_mean")
Text = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table ready to be shown; the first column names the row."""

    title: str
    headers: list[str]
    rows: list[list[str]]


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def ratio(figure: Sequence[float] | None) -> str:
    """A ratio with its interval; ≈ before one that is within noise of 1."""
    if figure is None:
        return NONE
    return f"{'' if excludes(figure, 1.0) else '≈ '}{figure[0]:.3f} ({figure[1]:.3f} to {figure[2]:.3f})"


def difference(figure: Sequence[float] | None) -> str:
    """A difference of shares in percentage points; ≈ before one that is within noise of 0."""
    if figure is None:
        return NONE
    low, high = (f"{100 * end:+.1f}" for end in figure[1:])
    return f"{'' if excludes(figure, 0.0) else '≈ '}{100 * figure[0]:+.1f} ({low} to {high})"


MAIN: tuple[tuple[str, str, Text], ...] = (
    ("hit", "hit_share", share),
    ("on device", "hit_device", share),
    ("on host", "hit_host", share),
    ("computed", "computed", share),
    ("latency mean, s", "latency_mean_s", seconds),
    ("p50", "latency_p50_s", seconds),
    ("p95", "latency_p95_s", seconds),
    ("p99", "latency_p99_s", seconds),
    ("without tools mean, s", "latency_without_tools_mean_s", seconds),
    ("p50", "latency_without_tools_p50_s", seconds),
    ("p95", "latency_without_tools_p95_s", seconds),
    ("p99", "latency_without_tools_p99_s", seconds),
    ("TTFT mean, s", "ttft_mean_s", seconds),
    ("p95", "ttft_p95_s", seconds),
    ("tokens/s", "throughput_tokens_per_s", count),
    ("output tokens/s", "output_tokens_per_s", count),
    ("rounds", "rounds", count),
    ("workflows", "workflows", count),
    ("failed workflows", "failed_workflows", count),
    ("calls", "calls", count),
    ("failed calls", "failed_calls", count),
)


def point_tables(point: Point, policies: Sequence[str]) -> list[TextTable]:
    """Every figure of a point, in a few tables."""
    shown = [name for name in policies if name in point["policies"]]
    tables = [
        _main(point, shown),
        _ratios(point, shown),
        balance_table(point, shown),
        _cache(point, shown),
        _agents(point, shown),
    ]
    return [table for table in tables if table.rows and len(table.headers) > 1]


def short_table(point: Point, policies: Sequence[str]) -> TextTable:
    """The few figures that fit a terminal."""
    rows = []
    for name in policies:
        if name not in point["policies"]:
            continue
        figures, over = point["policies"][name], point["ratios"].get(name, {})
        cells = [share(figures["hit_share"]), seconds(figures["latency_mean_s"]), seconds(figures["latency_p95_s"])]
        cells += [seconds(figures["ttft_mean_s"]), ratio(over.get("latency_mean")), ratio(over.get("ttft_mean"))]
        rows.append([name, *cells, difference(over.get("hit_share_difference")), count(figures["failed_calls"])])
    base = point["baseline"] or "baseline"
    headers = ["policy", "hit", "latency, s", "p95", "TTFT, s", f"latency ÷ {base}", f"TTFT ÷ {base}"]
    return TextTable(point["key"], [*headers, "hit − baseline, points", "failed"], rows)


def balance_table(point: Point, policies: Sequence[str]) -> TextTable:
    """How evenly several engines were loaded, and why calls went where they did; without rows for one engine."""
    balanced = [name for name in policies if point["policies"].get(name, {}).get("balance")]
    routes = dict.fromkeys(why for name in balanced for why in point["policies"][name]["routes"])
    rows = []
    for name in balanced:
        mine = point["policies"][name]
        cells = [f"{mine['balance'][load]:.2f}" for load in ("calls", "prompt", "computed")]
        rows.append([name, *cells, *(count(mine["routes"].get(why, 0)) for why in routes)])
    headers = ["policy", "calls", "prompt tokens", "computed", *routes]
    return TextTable(
        "The busiest engine's load over the mean engine's, and calls by why they went there", headers, rows
    )


def _main(point: Point, shown: Sequence[str]) -> TextTable:
    rows = [[name, *(text(point["policies"][name][key]) for _, key, text in MAIN)] for name in shown]
    return TextTable("Figures", ["policy", *(header for header, *_ in MAIN)], rows)


def _ratios(point: Point, shown: Sequence[str]) -> TextTable:
    names = [name for name in shown if name in point["ratios"] or name in point["way"]]
    rows = []
    for name in names:
        over, ways = point["ratios"].get(name, {}), point["way"].get(name, {})
        cells = [ratio(over.get(figure)) for figure in RATIOS]
        cells += [difference(over.get("hit_share_difference")), count(over.get("pairs"))]
        cells += [count(over.get("left_out_failed")), count(over.get("unequal"))]
        cells += [share(ways.get(of, {}).get(f"to_{ideal}")) for of in ("hit", "latency") for ideal in IDEALS]
        rows.append([name, *cells])
    headers = ["policy", "latency", "without tools", "TTFT", "hit, points", "pairs", "left out (failed)", "unequal"]
    headers += [f"{of}: way to {ideal}" for of in ("hit", "latency") for ideal in IDEALS]
    return TextTable(
        f"Over {point['baseline']}, and how much of the way from {point['way_from']} to what is possible", headers, rows
    )


def _cache(point: Point, shown: Sequence[str]) -> TextTable:
    """What happened in the engines' caches. Reasons of eviction are whatever was counted."""
    figures = point["policies"]
    reasons = {
        (tier, reason): None
        for name in shown
        for tier in ("device", "host")
        for reason in figures[name]["evicted"][tier]
    }
    prefetch = dict.fromkeys(key for name in shown for key in figures[name]["prefetch"])
    headers = ["policy", "regret", *(f"evicted {tier}: {reason.replace('_', ' ')}" for tier, reason in reasons)]
    headers += [f"prefetch: {key.replace('_', ' ')}" for key in prefetch]
    rows = []
    for name in shown:
        mine = figures[name]
        cells = [count(mine["regret_tokens"]), *(count(mine["evicted"][tier].get(why)) for tier, why in reasons)]
        cells += [count(mine["prefetch"].get(key)) for key in prefetch]
        rows.append([name, *cells, seconds(mine["policy_cpu_s"])])
    return TextTable("In the caches, tokens over all rounds", [*headers, "policy's processor time, s"], rows)


def _agents(point: Point, shown: Sequence[str]) -> TextTable:
    agents = sorted({agent for name in shown for agent in point["policies"][name]["ttft_by_agent"]})
    rows = [
        [name, *(seconds(point["policies"][name]["ttft_by_agent"].get(agent)) for agent in agents)] for name in shown
    ]
    return TextTable("Mean time to first token by agent, s", ["policy", *agents], rows)
