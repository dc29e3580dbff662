"""The report: one page that needs nothing but itself, whatever the results hold."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import orjson
import pytest
from benchmark_records import made_up
from rich.console import Console

from serving.benchmark.figures import Results, results_of
from serving.benchmark.records import PointSpec, Records
from serving.benchmark.report import html_page, print_results, write_report
from serving.benchmark.summary import summary
from serving.benchmark.sweep import main_axis, slices

SWEEP = [PointSpec.of(workload="chatdev", concurrency=c, noise=n) for c in (4, 8) for n in (0.0, 0.3)]
VOID = {"meta", "br"}


def results(records: Records, complete: bool = True) -> Results:
    return results_of(records, "laptop", {"command": "forecache bench run"}, complete)


class Page(HTMLParser):
    """Checks that tags are closed, and collects text, ids and what the page refers to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(attrs)

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "srcset"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_its_pictures_do_not_meet() -> None:
    html = html_page(results(made_up({"lru": 1.0, "reuse": 0.9}, SWEEP)))
    page = Page(html)
    assert "http://" not in html
    assert "https://" not in html
    assert "<script" not in html
    assert len(page.ids) == len(set(page.ids))
    assert page.references
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)


def test_every_policy_is_named_and_names_are_escaped() -> None:
    names = {"lru": 1.0, "<b>&\"'$x^2$": 0.9, "[red]a long name that goes on and on": 0.8}
    html = html_page(results(made_up(names)))
    assert "<b>" not in html
    for name in names:
        assert name in Page(html).text


def test_fourteen_policies_are_drawn(tmp_path: Path) -> None:
    factors = {f"policy-{number}": 1 - 0.03 * number for number in range(14)}
    page = write_report(results(made_up(factors, SWEEP[:1], workflows=4)), tmp_path)
    text = Page(page.read_text()).text
    assert all(name in text for name in factors)


def test_results_are_written_beside_the_page_and_matplotlib_is_left_as_it_was(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    made = results(made_up({"lru": 1.0}, rounds=1))
    page = write_report(made, tmp_path / "new" / "report")
    assert orjson.loads((page.parent / "results.json").read_bytes()) == made
    assert dict(mpl.rcParams) == before


def test_the_same_results_give_the_same_page() -> None:
    made = results(made_up({"lru": 1.0, "reuse": 0.9}))
    assert html_page(made) == html_page(made)


@pytest.mark.parametrize("workflows", [0, 1])
def test_one_policy_at_one_point_with_or_without_a_finished_workflow(workflows: int) -> None:
    made = results(made_up({"lru": 1.0}, rounds=1, workflows=workflows), complete=False)
    text = Page(html_page(made)).text
    assert "interrupted" in text
    assert ("No workflow finished" in text) == (workflows == 0)
    print_results(made, Console(file=io.StringIO()))


def test_policies_missing_at_a_point_are_tolerated() -> None:
    records = made_up({"lru": 1.0, "reuse": 0.9}, SWEEP)
    kept = {
        key: value
        for key, value in records.rounds.items()
        if key[:2] not in ((SWEEP[0].key, "lru"), (SWEEP[2].key, "reuse")) and key[0] != SWEEP[3].key
    }
    text = Page(html_page(results(Records(records.points, kept)))).text
    assert "no baseline) at: concurrency 4, noise 0.0" in text
    assert "concurrency 8, noise 0.3: no round finished" in text


def test_nothing_at_all_is_a_page_too() -> None:
    for records in (Records({}, {}), Records({"p": PointSpec("p", {})}, {})):
        assert "No workflow finished" in Page(html_page(results(records))).text


def test_a_run_in_which_every_call_failed() -> None:
    records = made_up({"lru": 1.0, "reuse": 1.0})
    failed = {
        key: (record, [replace(call, error="503", first_token_s=None) for call in calls])
        for key, (record, calls) in records.rounds.items()
    }
    assert "No workflow finished" in Page(html_page(results(Records(records.points, failed)))).text


class TestSummary:
    def test_says_what_differs_and_what_does_not(self) -> None:
        lines = " ".join(summary(results(made_up({"lru": 1.0, "same": 1.0, "quick": 0.7, "slow": 1.4}))))
        assert re.search(r"latency against lru: less with quick -\d+\.\d % \(.*more with slow \+\d+", lines)
        assert re.search(r"latency against lru: .*within noise: same\.", lines)
        assert re.search(r"hit share against lru: lower with slow .*higher with quick", lines)
        assert "2 of 3 comparisons" in lines

    def test_warns_of_one_round_and_failed_calls_and_moot_points(self) -> None:
        records = made_up({"lru": 1.0, "reuse": 1.0}, rounds=1, counters={"prompt": 1000, "evicted_device_recency": 0})
        (key, (record, calls)), *others = records.rounds.items()
        rounds = dict([(key, (record, [replace(calls[0], error="503"), *calls[1:]])), *others])
        lines = " ".join(summary(results(Records(records.points, rounds))))
        for warning in ("Rounds: 1.", "1 of 72 calls failed", "No choice of policy can matter"):
            assert warning in lines


def test_the_terminal_shows_names_as_they_are() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    print_results(results(made_up({"lru": 1.0, "[red]x": 0.5})), console)
    text = console.export_text()
    assert "[red]x" in text
    assert "thrashing" in text


def test_a_sweep_is_drawn_against_concurrency_and_cut_by_the_rest() -> None:
    points = results(made_up({"lru": 1.0}, SWEEP, rounds=1))["points"]
    assert main_axis(points) == "concurrency"
    assert [(row.title, len(row.points)) for row in slices(points, "concurrency")] == [
        ("noise 0.0", 2),
        ("noise 0.3", 2),
    ]
    only_names = [{**point, "point": {"workload": str(number)}} for number, point in enumerate(points)]
    assert main_axis(only_names) is None
    assert len(slices(only_names, None)) == 4
