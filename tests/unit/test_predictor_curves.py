"""Curves of predictors: what is disturbed and how, and what the command draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictor_workflows import retry_loops, trace_of
from typer.testing import CliRunner

from predictor_actor.model import ModelConfig
from predictor_actor.traces import TraceWriter
from predictor_actor.train import TrainConfig
from serving.benchmark.disturbed import with_noise, with_other_graph
from serving.benchmark.predictor_curves import MODEL, RETRAINED, Plan, run_curves
from serving.benchmark.predictor_study import StudyError
from serving.cli import app

SMALL = TrainConfig(ModelConfig(width=8, hidden=8), epochs=2, few_calls=0)


class TestNoise:
    @given(st.floats(0, 1), st.integers(0, 99))
    def test_only_who_calls_is_changed(self, share: float, seed: int) -> None:
        traces = retry_loops(6)
        noisy = with_noise(traces, share, seed)
        assert [[call.start_s for call in trace.calls] for trace in noisy] == [
            [call.start_s for call in trace.calls] for trace in traces
        ]
        assert {call.agent for trace in noisy for call in trace.calls} <= {
            call.agent for trace in traces for call in trace.calls
        }
        assert all(set(trace.agents) == {call.agent for call in trace.calls} for trace in noisy)

    def test_the_share_of_calls_is_that_of_others(self) -> None:
        traces = retry_loops(300)
        before, after = ([call.agent for t in each for call in t.calls] for each in (traces, with_noise(traces, 0.3)))
        changed = sum(one != other for one, other in zip(before, after, strict=True)) / len(before)
        assert changed == pytest.approx(0.3, abs=0.05)

    def test_without_noise_nothing_is_changed_and_with_all_of_it_everything(self) -> None:
        traces = retry_loops(4)
        assert [trace.calls for trace in with_noise(traces, 0.0)] == [trace.calls for trace in traces]
        for noisy, trace in zip(with_noise(traces, 1.0), traces, strict=True):
            assert all(one.agent != other.agent for one, other in zip(noisy.calls, trace.calls, strict=True))

    def test_a_single_agent_has_no_other(self) -> None:
        [noisy] = with_noise([trace_of(["a", "a"])], 1.0)
        assert [call.agent for call in noisy.calls] == ["a", "a"]

    def test_a_share_out_of_range_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"noise is 1\.5"):
            with_noise(retry_loops(2), 1.5)


class TestOtherGraph:
    def test_every_agent_is_called_where_another_one_was(self) -> None:
        traces = retry_loops(6)
        part: dict[str, str] = {}
        for changed, trace in zip(with_other_graph(traces, seed=3), traces, strict=True):
            for new, old in zip(changed.calls, trace.calls, strict=True):
                assert part.setdefault(old.agent, new.agent) == new.agent != old.agent
        assert sorted(part) == sorted(part.values())


class TestCurves:
    @pytest.fixture(scope="class")
    def figures(self) -> dict:
        return run_curves(retry_loops(24), Plan(sizes=(4, 8, 500), noises=(0.0, 0.5), window=2, config=SMALL))

    def test_sizes_go_as_far_as_there_are_traces(self, figures: dict) -> None:
        assert [point["at"] for point in figures["sizes"]] == [4, 8, 18]

    def test_what_is_learned_without_noise_is_one_point_of_both_curves(self, figures: dict) -> None:
        assert figures["noise"][0]["predictors"] == figures["sizes"][-1]["predictors"]

    def test_noise_takes_accuracy_from_a_chain(self, figures: dict) -> None:
        clean, noisy = (point["predictors"]["markov-3"]["nll"][0] for point in figures["noise"])
        assert noisy > clean

    def test_the_drift_is_seen_and_the_online_chain_recovers(self, figures: dict) -> None:
        drift = figures["drift"]
        assert set(drift["top1"]) == {MODEL, RETRAINED, "markov-1", "markov-2", "markov-3"}
        assert (drift["trained_on"], drift["change_at"], drift["at"][-1]) == (6, 12, 24)
        assert all(len(top1) == len(drift["at"]) for top1 in drift["top1"].values())
        assert drift["least"]["markov-2"] < drift["before"]["markov-2"]
        assert drift["recovered_after"]["markov-2"] is not None

    def test_seven_workflows_are_too_few(self) -> None:
        with pytest.raises(StudyError, match="give at least 8"):
            run_curves(retry_loops(7), Plan(config=SMALL))

    def test_eight_workflows_are_enough_and_progress_only_rises(self) -> None:
        shares: list[float] = []
        plan = Plan(noises=(0.0,), seeds=2, config=SMALL)
        run_curves(retry_loops(8), plan, lambda share, text: shares.append(share))
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] < 1


class TestCommand:
    def test_it_writes_a_page_and_prints_its_figures(self, tmp_path: Path) -> None:
        with TraceWriter(tmp_path / "traces", "made") as writer:
            for trace in retry_loops(8):
                assert writer.write(trace)
        page = tmp_path / "pages" / "curves.html"
        options = ["--epochs", "1", "--report", str(page), "--json"]
        done = CliRunner().invoke(app, ["bench", "predictor-curves", str(tmp_path / "traces"), *options])
        assert done.exit_code == 0, done.output
        figures = json.loads(done.stdout)
        assert (figures["workflows"], figures["left_out"]) == (8, 0)
        text = page.read_text()
        assert text.count("<svg") == 3
        assert "http" not in text.replace("http-equiv", "")

    def test_what_cannot_be_read_is_an_error_with_its_path(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["bench", "predictor-curves", str(tmp_path / "nowhere")])
        assert done.exit_code == 2
        assert "nowhere" in done.stderr
