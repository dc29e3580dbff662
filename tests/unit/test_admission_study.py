"""What limits are worth: the study, its marks, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.benchmark.replay.admission_study import AdmissionStudy, Outcome, marks, shape_of
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.workloads import make_workload
from serving.cli import app

OPTIONS = "--workload hover -p workflows=9 -p scale=0.1 --capacity 0.8 --lanes 4 --policy lru,reuse --rates 2"


def study(**changed: object) -> AdmissionStudy:
    workload = make_workload("hover", 1, workflows=9, scale=0.1)
    given = {
        "workload": workload,
        "policies": ["lru"],
        "limits": ["1", "3", "off"],
        "rates": [0.5, 3.0],
        "costs": load_costs("qwen3-14b-a6000"),
        "shape": shape_of(workload, 0.8, 4),
    }
    return AdmissionStudy(**given | changed)  # type: ignore[arg-type]


def outcome(limit: str, mean: float, policy: str = "reuse", p99: float = 10.0) -> Outcome:
    return Outcome(2.0, policy, limit, 9, mean, p99, 1.0, 0.0, 0.5, 0.1, 100.0)


class TestStudy:
    def test_every_policy_meets_every_limit_at_every_rate(self) -> None:
        found = list(study().outcomes(1.0))
        assert [(one.rate, one.limit) for one in found] == [
            (r, limit) for r in (0.5, 3.0) for limit in ("1", "3", "off")
        ]
        assert all(one.workflows == 9 and 0 <= one.hit <= 1 and one.p99_s >= one.mean_s > 0 for one in found)
        assert found[3].mean_s > found[5].mean_s  # one after another, when three times as much comes as can be done

    def test_the_capacity_is_the_most_that_a_fixed_limit_brings(self) -> None:
        alone, both = study(limits=["1"]).capacity_per_s(), study().capacity_per_s()
        assert both > alone > 0

    def test_without_fixed_limits_the_capacity_must_be_given(self) -> None:
        with pytest.raises(ValueError, match="without fixed limits"):
            study(limits=["off", "balance"]).capacity_per_s()

    def test_a_burst_is_in_the_middle_and_its_limit_in_the_samples(self) -> None:
        burst = study().burst(1.0, "lru", "2")
        assert 0 < burst.begin_s < burst.end_s < burst.timeline[-1]["at_s"]
        assert {sample["limit"] for sample in burst.timeline} == {2.0}
        assert all(0 <= share <= 1 for _, share in burst.hits)

    def test_a_burst_that_is_let_in_shows_its_load_too(self) -> None:
        samples = study().burst(1.0, "lru", "off").timeline
        assert all("limit" not in sample and sample["held"] == 0 for sample in samples)
        assert 1 <= max(sample["admitted"] for sample in samples) <= 9


class TestMarks:
    def test_what_is_found_is_set_beside_the_best_fixed_one_and_beside_none(self) -> None:
        (mark,) = marks(
            [outcome("8", 50.0), outcome("16", 40.0), outcome("off", 80.0, p99=20.0), outcome("balance", 44.0)]
        )
        assert (mark.best, mark.over_best, mark.over_off, mark.p99_over_off) == ("16", 1.1, 0.55, 0.5)
        assert mark.lru_over is None

    def test_letting_all_in_can_be_the_best(self) -> None:
        (mark,) = marks(
            [outcome("8", 50.0), outcome("off", 40.0), outcome("balance", 40.0), outcome("off", 60.0, "lru")]
        )
        assert (mark.best, mark.over_off, mark.lru_over) == ("off", 1.0, 1.5)

    def test_without_letting_all_in_there_is_nothing_to_compare_with(self) -> None:
        assert marks([outcome("8", 50.0), outcome("balance", 40.0)]) == []


class TestCommand:
    def test_it_prints_a_line_for_each_limit_and_each_that_was_found(self) -> None:
        command = ["bench", "admission", *OPTIONS.split(), "--limits", "2,off,balance"]
        run = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
        assert run.exit_code == 0, run.output
        for said in ("2 x, 2", "2 x, off", "2 x, balance", "2 x, reuse, balance", "capacity"):
            assert said in run.stdout

    def test_as_json_and_as_a_page(self, tmp_path: Path) -> None:
        page = tmp_path / "made" / "page.html"
        more = ["--limits", "off,balance", "--per-second", "5", "--burst", "2,off", "--report", str(page), "--json"]
        run = CliRunner().invoke(app, ["bench", "admission", *OPTIONS.split(), *more])
        assert run.exit_code == 0, run.output
        said = json.loads(run.stdout)
        assert said["capacity_per_s"] == 5
        assert [(one["policy"], one["limit"]) for one in said["outcomes"]] == [
            (policy, limit) for policy in ("lru", "reuse") for limit in ("off", "balance")
        ]
        assert [one["limit"] for one in said["bursts"]] == ["2", "off"]
        assert page.read_text().count("<svg") == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--workload", "hover", "--limits", "none"], "unknown admission 'none'"),
            (["--workload", "hover", "--policy", "magic"], "unknown policy"),
            (["--workload", "hover", "--limits", "off", "-p", "workflows=2"], "without fixed limits"),
            (["--workload", "hover", "--rates", "x"], "could not convert"),
            ([], "give either --trace FILE or --workload NAME"),
        ],
    )
    def test_bad_input_is_told(self, options: list[str], message: str) -> None:
        run = CliRunner().invoke(app, ["bench", "admission", *options])
        assert run.exit_code == 2
        assert message in run.output
