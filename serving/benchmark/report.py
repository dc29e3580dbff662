"""Results as files and on the terminal: results.json, and one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serving.benchmark.result_text import TextTable, balance_table, point_tables, short_table
from serving.benchmark.summary import summary
from serving.benchmark.sweep import NOISE, Point, all_policies, describe, label, main_axis, slices, varying

CSS = """
body{font:16px/1.5 system-ui,sans-serif;color:#111;background:#fff;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem}h2{font-size:1.3rem;margin-top:2.2rem}h3{font-size:1.05rem}
svg{max-width:100%;height:auto}figure{margin:1rem 0}figcaption,.note{color:#444;font-size:.92rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th{vertical-align:bottom;white-space:normal;min-width:3.5rem}th:first-child,td:first-child{text-align:left;
position:sticky;left:0;background:#fff}summary{cursor:pointer;font-weight:600;padding:.3rem 0}
dt{font-weight:600}dd{margin:0 0 .3rem 1rem;overflow-wrap:anywhere}
"""
INTERVALS = (
    "Intervals are 95 % (bootstrap over rounds and the workflows in them, percentile method). Ratios are of means over "
    "the same workflows under both policies; ≈ stands before what is within noise. Workflow latency is from the first "
    "call sent to the end of the last; “without tools” takes off the time in which only tools ran. Hit shares are of "
    "prompt tokens; a difference is in percentage points. Tokens/s are prompt and output tokens."
)


def write_report(results: Mapping[str, Any], folder: Path) -> Path:
    """Write results.json and index.html into a folder, which is made; returns the page's path.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; results.json is written all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(
        orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    )
    page = folder / "index.html"
    require_pictures(page)
    page.write_text(html_page(results), encoding="utf-8")
    return page


def require_pictures(page: Path) -> None:
    """Raises ModuleNotFoundError, with the remedy, if a page's pictures cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            f"the pictures of {page} need matplotlib: pip install 'forecache[bench]'", name="matplotlib"
        )


def html_page(results: Mapping[str, Any]) -> str:
    """The whole report as one page: no script, no style sheet, picture or font from elsewhere."""
    points: Sequence[Point] = results["points"]
    policies = all_policies(points)
    draw = _Pictures()
    title = f"Cache policies compared: {results['suite']}"
    about = {**results["about"], "rounds": results["rounds"], "complete": "yes" if results["complete"] else "no"}
    facts = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in about.items())
    lines = "".join(f"<li>{escape(line)}</li>" for line in summary(results))
    body = [
        f"<h1>{escape(title)}</h1><dl>{facts}</dl>",
        f"<h2>In plain words</h2><ul>{lines}</ul><p class=note>{escape(INTERVALS)}</p>",
        *_sweep_sections(points, policies, draw),
        *(_point_section(point, points, policies, draw) for point in points),
    ]
    return page_of(title, "".join(body))


def page_of(title: str, body: str) -> str:
    """A page as a whole, in the style of all reports; the body is HTML, the title plain text."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{CSS}</style>'
    view = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{view}</head><body>{body}</body></html>\n'


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """The main figures of each point as a table, and the summary, for a terminal."""
    points: Sequence[Point] = results["points"]
    policies = all_policies(points)
    for point in points:
        table = short_table(point, policies)
        if table.rows:
            console.print(rich_table(table, f"{label(point, points)} ({point['band']})"))
        spread = balance_table(point, policies)
        if spread.rows:
            console.print(rich_table(spread, spread.title))
    for line in summary(results):
        console.print(Text(f"• {line}"))


def rich_table(table: TextTable, title: str) -> Table:
    """A text table for the terminal; names are shown as they are, not as markup."""
    shown = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for number, header in enumerate(table.headers):
        shown.add_column(Text(header), justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown


class _Pictures:
    """Pictures of one page: each with ids of its own, and nothing where there is nothing to draw."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self, caption: str, draw: Callable[..., Any], *what: Any) -> str:
        from serving.benchmark.plot_style import as_svg

        svg = as_svg(draw(*what), f"p{next(self._numbers)}", escape(caption, quote=True))
        return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _sweep_sections(points: Sequence[Point], policies: Sequence[str], draw: _Pictures) -> list[str]:
    from serving.benchmark import plots

    axis = main_axis(points)
    parts = []
    for row in slices(points, axis):
        if any(figures["workflows"] for point in row.points for figures in point["policies"].values()):
            where = f" at {row.title}" if row.title else ""
            caption = f"Workflow latency and hit share{where}, with 95 % intervals. Axes do not begin at 0."
            parts.append(draw(caption, plots.along_axis, row, policies))
    sections = [f"<h2>Latency and hit share</h2>{_folded(parts, 'more')}"] if parts else []
    if NOISE in varying(points):
        rows = [row for row in slices(points, NOISE) if len(row.points) > 1]
        captions = [f"Sensitivity to noise in the forecasts{f' at {row.title}' if row.title else ''}." for row in rows]
        drawn = [draw(text, plots.along_noise, row, policies) for text, row in zip(captions, rows, strict=True)]
        sections += [f"<h2>Noise in the forecasts</h2>{_folded(drawn, 'more')}"] if drawn else []
    return sections


def _point_section(point: Point, points: Sequence[Point], policies: Sequence[str], draw: _Pictures) -> str:
    from serving.benchmark import plots

    figures = point["policies"]
    parts = [
        f"<p class=note>{escape(describe(point['point']))}. "
        f"Band: {escape(point['band'])}, {escape(point['band_why'])}.</p>"
    ]
    if any(each["hit_device"] is not None for each in figures.values()):
        parts.append(draw("Where the prompt tokens came from.", plots.tiers, point, policies))
    if any(each["latencies"] for each in figures.values()):
        parts.append(draw("Workflow latencies, cumulative.", plots.distributions, point, policies))
    sampled = _worth_a_timeline(point)
    if sampled:
        parts.append(
            draw("One engine's device pool over the round of median length.", plots.pool_timeline, point, sampled)
        )
    parts += [html_table(table) for table in point_tables(point, policies)]
    reasons = {why for each in point["way_missing"].values() for why in each.values()}
    if reasons and point["way"]:
        parts.append(f"<p class=note>No part of the way is given where {escape('; '.join(sorted(reasons)))}.</p>")
    opened = " open" if point is points[0] else ""
    return f"<details{opened}><summary>{escape(label(point, points))}</summary>{''.join(parts)}</details>"


def _worth_a_timeline(point: Point) -> list[str]:
    """The baseline and the policy of least latency, as far as they have samples."""
    sampled = [name for name, each in point["policies"].items() if each["timeline"]]
    quick = sorted(
        (
            name
            for name in sampled
            if name != point["baseline"] and point["policies"][name]["latency_mean_s"] is not None
        ),
        key=lambda name: point["policies"][name]["latency_mean_s"],
    )
    chosen = [name for name in [point["baseline"], *quick[:1]] if name in sampled]
    return chosen or sampled[:1]


def _folded(parts: Sequence[str], word: str) -> str:
    """The first few in view, the others folded away."""
    more = "".join(parts[2:])
    return "".join(parts[:2]) + (f"<details><summary>{len(parts) - 2} {word}</summary>{more}</details>" if more else "")


def html_table(table: TextTable) -> str:
    """A text table as HTML, under its title."""
    headers = "".join(f"<th scope=col>{escape(header)}</th>" for header in table.headers)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f"<h3>{escape(table.title)}</h3><div class=wide><table><tr>{headers}</tr>{rows}</table></div>"
