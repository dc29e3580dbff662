"""`serving.demo` against a local server."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from openai_server import OpenAIServer, Seen
from rich.console import Console
from typer.testing import CliRunner

from serving import demo as module
from serving.client import uninstall
from serving.demo import ANCHORS, DemoError, DemoOptions, demo, run_demo
from serving.demo_view import CallResult, DemoResult, DemoView, Totals, WorkflowResult, call_line, calls_table

ROUND = ["researcher", "writer", "critic"]


def usage(seen: Seen) -> dict[str, Any]:
    """The usage block with Forecache's extra fields `device` and `host`."""
    return {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": 60, "device": 50, "host": 10},
    }


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer=lambda seen: f"says {seen.tag[1]}", usage=usage) as server:
        yield server
    uninstall()


def run_cli(*args: str) -> Any:
    app = typer.Typer()
    app.command("demo")(demo)
    return CliRunner().invoke(app, list(args))


def options(server: OpenAIServer, **more: Any) -> DemoOptions:
    return DemoOptions(base_url=server.base_url, **more)


def agents_of(calls: list[CallResult]) -> list[str]:
    return [call.agent for call in calls]


class TestWorkflow:
    async def test_ends_at_the_limit_of_rounds(self, server: OpenAIServer) -> None:
        (workflow,) = (await run_demo(options(server, rounds=3))).workflows
        assert agents_of(workflow.calls) == ["planner", *ROUND * 3]
        assert [call.round for call in workflow.calls] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert workflow.ended == "limit"
        assert workflow.answer == "says writer"

    async def test_ends_by_the_critic(self, server: OpenAIServer) -> None:
        server.answer = lambda seen: "Good. APPROVED." if seen.tag[1] == "critic" else "APPROVED is not mine to say"
        (workflow,) = (await run_demo(options(server, rounds=3))).workflows
        assert agents_of(workflow.calls) == ["planner", *ROUND]
        assert workflow.ended == "critic"

    async def test_each_call_carries_its_anchor_and_all_that_was_written(self, server: OpenAIServer) -> None:
        await run_demo(options(server, rounds=1, task="Sing.", max_tokens=9))
        written = "Task: Sing."
        for seen in server.calls():
            name = str(seen.tag[1])
            assert seen.body["messages"] == [
                {"role": "system", "content": ANCHORS[name]},
                {"role": "user", "content": written},
            ]
            assert (seen.body["temperature"], seen.body["seed"], seen.body["max_tokens"]) == (0, 0, 9)
            assert seen.body["model"] == "tiny"
            written += f"\n\n[{name}]\nsays {name}"

    async def test_is_tagged_and_ended(self, server: OpenAIServer) -> None:
        (workflow,) = (await run_demo(options(server, rounds=1))).workflows
        assert {seen.tag[0] for seen in server.calls()} == {workflow.id}
        assert server.ended() == [f"/v1/workflows/{workflow.id}"]

    async def test_many_run_at_once_on_different_tasks(self, server: OpenAIServer) -> None:
        result = await run_demo(options(server, rounds=1, workflows=14))
        tasks = [workflow.task for workflow in result.workflows]
        assert len(set(tasks)) == 14
        assert tasks[13] == f"{tasks[1]} (Variant 2.)"
        assert len(server.ended()) == 14
        assert result.totals.calls == 14 * 4

    async def test_a_lane_starts_new_ones_until_the_time_is_over(self, server: OpenAIServer) -> None:
        result = await run_demo(options(server, rounds=1, workflows=2, duration_s=0.5))
        assert len(result.workflows) > 4
        assert all(workflow.ended == "limit" for workflow in result.workflows)
        assert 0.5 <= result.duration_s < 5


class TestErrors:
    async def test_a_failed_call_is_counted_and_ends_its_workflow(self, server: OpenAIServer) -> None:
        def fail_the_first_writer(seen: Seen) -> int:
            return 400 if seen.tag[1] == "writer" and str(seen.tag[0]).endswith("-0") else 200

        server.status = fail_the_first_writer
        result = await run_demo(options(server, rounds=1, workflows=2))
        failed, good = result.workflows
        assert (failed.ended, good.ended) == ("error", "limit")
        assert agents_of(failed.calls) == ["planner", "researcher", "writer"]
        assert "told to fail with 400" in str(failed.calls[-1].error)
        assert (result.totals.calls, result.totals.errors) == (7, 1)
        assert len(server.ended()) == 2

    async def test_a_stream_that_breaks_off_is_an_error(self, server: OpenAIServer) -> None:
        server.cut = lambda seen: seen.tag[1] == "critic"
        (workflow,) = (await run_demo(options(server))).workflows
        assert workflow.ended == "error"
        assert workflow.calls[-1].error == "the stream broke off before its end"

    async def test_who_cancels_has_what_was_finished(self, server: OpenAIServer) -> None:
        server.delay_s = 0.3
        result = DemoResult()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(run_demo(options(server), result=result), 0.5)
        (workflow,) = result.workflows
        assert (workflow.ended, agents_of(workflow.calls)) == ("interrupted", ["planner"])
        assert server.ended() == [f"/v1/workflows/{workflow.id}"]

    async def test_an_endpoint_without_models_is_refused(self, server: OpenAIServer) -> None:
        server.status = lambda seen: 404 if seen.method == "GET" else 200
        with pytest.raises(DemoError, match="/v1/models answered 404"):
            await run_demo(options(server))
        assert (await run_demo(options(server, model="mine"))).totals.errors == 0
        assert server.calls()[0].body["model"] == "mine"

    async def test_openai_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "openai", None)
        with pytest.raises(DemoError, match="pip install"):
            await run_demo(DemoOptions())


class TestCommand:
    def test_json_has_the_figures_and_nothing_else(self, server: OpenAIServer) -> None:
        run = run_cli("--base-url", server.base_url, "--rounds", "1", "--workflows", "2", "--json")
        assert run.exit_code == 0, run.output
        shown = json.loads(run.stdout)
        assert [workflow["ended"] for workflow in shown["workflows"]] == ["limit", "limit"]
        call = shown["workflows"][0]["calls"][1]
        assert 0 < call.pop("ttft_s") <= call.pop("total_s") < 5
        assert call == {
            "agent": "researcher",
            "round": 1,
            "engine": "engine-0",
            "prompt_tokens": 100,
            "cached_tokens": 60,
            "cached_device": 50,
            "cached_host": 10,
            "output_tokens": 7,
            "error": None,
        }
        totals = shown["totals"]
        assert 0 < totals.pop("ttft_mean_s") <= totals.pop("ttft_p95_s") < 5
        assert totals.pop("duration_s") > 0
        assert totals == {
            "workflows": 2,
            "calls": 8,
            "errors": 0,
            "prompt_tokens": 800,
            "cached_tokens": 480,
            "cached_device": 400,
            "cached_host": 80,
            "output_tokens": 56,
            "hit_share": 0.6,
        }

    def test_an_endpoint_that_reports_no_details(self, server: OpenAIServer) -> None:
        server.usage = lambda seen: {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        run = run_cli("--base-url", server.base_url, "--rounds", "1", "--json")
        shown = json.loads(run.stdout)
        assert shown["workflows"][0]["calls"][0]["cached_device"] is None
        assert shown["totals"]["cached_tokens"] == 0

    def test_plain_lines_and_summary_without_a_terminal(self, server: OpenAIServer) -> None:
        run = run_cli("--base-url", server.base_url, "--rounds", "1", "--workflows", "6")
        assert run.exit_code == 0
        assert run.stdout.count("prompt 100, device 50, host 10, TTFT") == 24
        assert run.stdout.count("says writer") == 4
        assert "and 2 more answers" in run.stdout
        assert "24 calls, 0 errors; 2400 prompt tokens, 60% from the cache" in run.stdout.replace("\n", " ")

    def test_endpoint_down_is_one_clear_line(self, server: OpenAIServer) -> None:
        server.stop()
        run = run_cli("--base-url", server.base_url)
        assert run.exit_code == 2
        (line,) = run.output.splitlines()
        assert server.base_url in line
        assert "`serve run configs/laptop.yaml`" in line

    @pytest.mark.parametrize("url", ["nonsense", "http://[bad"])
    def test_a_bad_url_is_one_clear_line(self, url: str) -> None:
        run = run_cli("--base-url", url)
        assert run.exit_code == 2, run.exception
        assert "--base-url" in run.output

    def test_any_error_is_exit_code_1(self, server: OpenAIServer) -> None:
        server.status = lambda seen: 400 if seen.tag[1] == "critic" else 200
        run = run_cli("--base-url", server.base_url)
        assert run.exit_code == 1
        assert "4 calls, 1 errors" in run.stdout
        assert "told to fail with 400" in run.stdout

    def test_ctrl_c_ends_the_workflows_and_prints_what_was_finished(self, server: OpenAIServer) -> None:
        server.delay_s = 0.3
        code = "import typer; from serving.demo import demo; typer.run(demo)"
        args = [sys.executable, "-c", code, "--base-url", server.base_url, "--workflows", "3", "--json"]
        with subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            text=True,
            # Whoever starts the tests in the background may have taught them to ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            deadline = time.monotonic() + 60
            while len(server.calls()) < 6 and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        workflows = json.loads(stdout)["workflows"]
        assert [workflow["ended"] for workflow in workflows] == ["interrupted"] * 3
        assert len(workflows[0]["calls"]) >= 1
        assert sorted(server.ended()) == sorted(f"/v1/workflows/{workflow['id']}" for workflow in workflows)

    def test_help_explains_every_option(self) -> None:
        run = run_cli("--help")
        assert run.exit_code == 0
        for name in ("--base-url", "--api-key", "--model", "--workflows", "--rounds", "--max-tokens"):
            assert name in run.output
        for name in ("--duration", "--task", "--json", "OPENAI_API_KEY", "Exit code"):
            assert name in run.output


CALL = CallResult("demo-1", "critic", 2, "engine-0", 1234, 900, 777, 123, 64, 0.25, 1.5)


def rendered(*things: Any) -> str:
    console = Console(record=True, width=100, file=io.StringIO())
    for thing in things:
        console.print(thing)
    return console.export_text()


class TestView:
    def test_the_table_has_the_figures_of_a_call(self) -> None:
        text = rendered(calls_table([CALL]))
        for figure in ("demo-1", "critic", "2", "1234", "777", "123", "0.250 s", "1.500 s"):
            assert figure in text

    def test_what_is_unknown_is_a_dash(self) -> None:
        line = call_line(CallResult("w", "planner", 0, prompt_tokens=0))
        assert "prompt 0, device -, host -, TTFT -" in line.plain

    def test_a_terminal_gets_a_live_table_of_the_last_30_calls(self) -> None:
        console = Console(record=True, width=100, height=60, force_terminal=True, file=io.StringIO())
        totals = Totals()
        with DemoView(console, totals) as view:
            for number in range(32):
                call = CallResult(f"w-{number}", "writer", 1, prompt_tokens=10, total_s=0.1)
                call.error = "[oh] no" if number == 31 else None
                totals.add(call)
                view.on_call(call)
        text = console.export_text()
        assert "w-31" in text
        assert "w-1 " not in text.split("w-2 ")[-1]
        assert "32 calls, 1 errors; 320 prompt tokens" in text
        assert "w-31 writer round 1: [oh] no" in text

    def test_the_summary_has_answers_agents_and_totals(self) -> None:
        result = DemoResult([WorkflowResult("demo-1", "Sing.", "limit", [CALL], "La [la] la")])
        result.totals.add(CALL)
        console = Console(record=True, width=100, file=io.StringIO())
        DemoView(console, result.totals).print_summary(result)
        text = console.export_text()
        for figure in ("demo-1: Sing.", "La [la] la", "ended by: limit", "critic", "777", "123", "73%", "64"):
            assert figure in text


class TestTotals:
    def test_p95_is_the_nearest_rank(self) -> None:
        totals = Totals()
        assert (totals.ttft_p95_s, totals.ttft_mean_s, totals.hit_share) == (None, None, None)
        for number in range(1, 101):
            totals.add(CallResult("w", "a", 1, ttft_s=float(number)))
        assert totals.ttft_p95_s == 95.0
        assert totals.ttft_mean_s == 50.5


def test_a_broken_endpoint_is_not_hammered(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_AFTER_ERROR_S", 0.2)
    server.status = lambda seen: 400 if seen.method == "POST" else 200
    result = asyncio.run(run_demo(options(server, duration_s=0.5)))
    assert 2 <= len(result.workflows) <= 4
