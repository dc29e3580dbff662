"""The table of hits: means and ranges over rounds, and a part of the way only where there is a way."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.benchmark.hit_table import HitTable, cell, hit_table, markdown, way
from serving.benchmark.records import read_records
from serving.cli import app

LINE = {"lru": [10.0, 20.0], "reuse": [20.0, 24.0], "belady": [24.0, 26.0]}


def test_a_cell_has_mean_range_and_part_of_the_way() -> None:
    assert cell(LINE, "lru") == "15.0 % [10.0, 20.0]"
    assert cell(LINE, "reuse") == "22.0 % [20.0, 24.0] (0.70)"
    assert cell(LINE, "lookahead") == "–"
    assert cell({"lru": [10.0], "reuse": [12.0]}, "reuse") == "12.0 %"


def test_there_is_no_part_of_a_way_of_less_than_two_points() -> None:
    assert way({"lru": [10.0], "reuse": [11.0], "belady": [11.9]}, "reuse") is None


def test_there_are_as_many_names_as_points() -> None:
    with pytest.raises(ValueError, match="chatdev has 1 points"):
        HitTable("chatdev", ["a", "b"], [LINE])


def test_a_replay_s_records_become_lines(tmp_path: Path) -> None:
    workload = "--workload hover -p workflows=4 --scale 0.1 --lanes 2 --policy lru,belady --capacity 0.4,0.6 --rounds 2"
    run = CliRunner().invoke(app, ["replay", *workload.split(), "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    table = hit_table(read_records(tmp_path / "records.jsonl"), "hover")
    assert [len(line["belady"]) for line in table.lines] == [2, 2]
    assert all(0 <= hits <= 100 for line in table.lines for each in line.values() for hits in each)
    printed = CliRunner().invoke(app, ["bench", "hits", str(tmp_path), "--name", "HoVer", "--points", ".4,.6"])
    rows = printed.stdout.splitlines()
    assert rows[0] == "| workload, pool | `lru` | `belady` |"
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| HoVer .4", "| HoVer .6"]
    assert markdown([table]).splitlines()[2].split(" | ")[1:] == rows[2].split(" | ")[1:]
    wrong = CliRunner().invoke(app, ["bench", "hits", str(tmp_path), "--points", ".4"])
    assert wrong.exit_code == 2
    assert "2 points" in wrong.output
