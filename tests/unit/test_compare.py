"""Two results compared: what changed, what is noise, and what only one of them has."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from benchmark_records import made_up
from rich.console import Console
from typer.testing import CliRunner

from serving.benchmark.compare import ResultsError, compare, comparison_tables, load_results
from serving.benchmark.figures import Results, results_of
from serving.benchmark.records import PointSpec, RecordWriter
from serving.benchmark.report import rich_table
from serving.cli import app

POINTS = (PointSpec.of(concurrency=8), PointSpec.of(concurrency=16))


def results(factors: dict[str, float], points: tuple[PointSpec, ...] = POINTS[:1], seed: int = 0) -> Results:
    return results_of(made_up(factors, points, workflows=40, seed=seed), "laptop", {"command": "x"}, True)


def test_equal_results_do_not_differ() -> None:
    same = results({"lru": 1.0, "reuse": 0.8})
    (point,) = compare(same, same)["points"]
    for figures in point["policies"].values():
        for change in figures.values():
            assert not change["beyond_noise"]
            if change["change"] is not None:
                assert change["change"][0] == pytest.approx(1.0 if change["kind"] == "ratio" else 0.0)


def test_a_change_beyond_noise_is_told_from_another_sample_of_the_same() -> None:
    before, after = results({"lru": 1.0, "reuse": 1.0}), results({"lru": 1.0, "reuse": 0.6}, seed=1)
    (point,) = compare(before, after)["points"]
    for name in ("latency_mean_s", "latency_without_tools_mean_s", "ttft_mean_s", "latency_p50_s", "latency_p95_s"):
        assert not point["policies"]["lru"][name]["beyond_noise"]
        assert point["policies"]["reuse"][name]["beyond_noise"]
        value, low, high = point["policies"]["reuse"][name]["change"]
        assert low < value < high < 1
    hit = point["policies"]["reuse"]["hit_share"]
    assert hit["beyond_noise"]
    assert hit["change"][0] == pytest.approx(hit["after"] - hit["before"])


def test_what_only_one_has_is_named() -> None:
    before, after = results({"lru": 1.0, "steps": 1.0}, POINTS), results({"lru": 1.0, "ttl": 1.0}, POINTS[1:])
    comparison = compare(before, after)
    assert (comparison["only_before"], comparison["only_after"]) == ([POINTS[0].key], [])
    (point,) = comparison["points"]
    assert (point["only_before"], point["only_after"]) == (["steps"], ["ttl"])
    assert orjson.loads(orjson.dumps(comparison)) == comparison


def test_the_tables_show_it_all_on_a_terminal() -> None:
    comparison = compare(results({"lru": 1.0, "[red]x": 1.0}, POINTS), results({"lru": 0.5}), names=("a", "b"))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in comparison_tables(comparison):
        console.print(rich_table(table, table.title))
    text = console.export_text()
    for expected in ("lru: latency mean, s", "lru: without tools mean, s", "[red]x", "yes", POINTS[1].key):
        assert expected in text


def test_results_without_a_finished_workflow_compare() -> None:
    empty = results_of(made_up({"lru": 1.0}, rounds=1, workflows=0), "laptop", {}, False)
    (point,) = compare(empty, results({"lru": 1.0}))["points"]
    assert point["policies"]["lru"]["latency_mean_s"]["change"] is None
    assert comparison_tables(compare(empty, empty))


def test_results_are_loaded_from_a_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(orjson.dumps(results({"lru": 1.0})))
    assert load_results(tmp_path) == load_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b'{"schema": 99, "points": []}', "schema 99.*report again"),
        (b"[]", "schema None"),
        (b"{", "not JSON"),
        (None, "no such"),
    ],
)
def test_results_that_cannot_be_read_are_an_error_with_the_file_and_a_remedy(
    tmp_path: Path, content: bytes | None, remedy: str
) -> None:
    file = tmp_path / "old.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ResultsError, match=rf"old\.json: .*{remedy}"):
        load_results(file)


def test_a_schema_mismatch_names_the_one_that_is_wrong() -> None:
    good = results({"lru": 1.0})
    with pytest.raises(ResultsError, match=r"run2\.json: results of schema 2"):
        compare(good, {**good, "schema": 2}, names=("run1.json", "run2.json"))


class TestReport:
    def test_what_was_measured_is_reported_again_over_another_policy(self, tmp_path: Path) -> None:
        records = made_up({"lru": 1.0, "lifecycle": 0.8})
        with RecordWriter(tmp_path / "records.jsonl") as writer:
            for point in records.points.values():
                writer.point(point)
            for round_, calls in records.rounds.values():
                writer.begin_round(round_.point, round_.policy, round_.round)
                for call in calls:
                    writer.call(call)
                writer.end_round(round_)
        before = results_of(records, "suite", {"command": "bench run"}, complete=True)
        (tmp_path / "results.json").write_bytes(orjson.dumps(before, option=orjson.OPT_SERIALIZE_NUMPY))
        again = CliRunner().invoke(app, ["bench", "report", str(tmp_path), "--json"])
        assert again.exit_code == 0, again.output
        assert orjson.loads(again.stdout) == orjson.loads((tmp_path / "results.json").read_bytes())
        out = tmp_path / "over lifecycle"
        arguments = ["bench", "report", str(tmp_path), "--baseline", "lifecycle", "--out", str(out), "--json"]
        other = orjson.loads(CliRunner().invoke(app, arguments).stdout)["points"][0]
        assert other["baseline"] == "lifecycle"
        assert other["ratios"]["lru"]["latency_mean"][0] > 1.1
        assert (out / "index.html").exists()

    def test_what_cannot_be_reported_is_an_error(self, tmp_path: Path) -> None:
        for arguments in ([str(tmp_path)], [str(tmp_path / "absent")]):
            failed = CliRunner().invoke(app, ["bench", "report", *arguments])
            assert (failed.exit_code, "no such file" in failed.output) == (2, True)
