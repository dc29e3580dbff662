"""`forecache bench overhead`: both sides get the same load, however many engines they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from serving.benchmark.driver.overhead import dealt
from serving.benchmark.workloads import make_workload
from serving.cli import app


class TestDealt:
    @given(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
    def test_bare_servers_share_all_workflows_and_all_lanes(self, endpoints: int, lanes: int, workflows: int) -> None:
        lanes, workflows = lanes + endpoints, workflows + endpoints
        whole = make_workload("finance", 1, workflows=workflows)
        parts = dealt(whole, lanes, endpoints)
        assert len(parts) == endpoints
        assert sorted(one.id for part, _ in parts for one in part.workflows) == sorted(
            one.id for one in whole.workflows
        )
        assert sum(its.lanes for _, its in parts) == lanes
        assert max(its.lanes for _, its in parts) - min(its.lanes for _, its in parts) <= 1


@pytest.mark.parametrize("few", [("--lanes", "2"), ("--workflows", "2")])
def test_too_little_for_the_engines_is_said_before_any_starts(few: tuple[str, str]) -> None:
    run = CliRunner().invoke(app, ["bench", "overhead", "--engines", "3", *few])
    assert run.exit_code == 2
    assert "of 3 engines idle" in run.output
    assert "Traceback" not in run.output
