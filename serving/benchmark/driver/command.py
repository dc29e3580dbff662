"""The command line of `forecache bench run`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

if TYPE_CHECKING:
    from serving.benchmark.driver.run import Progress, Run

EXIT_FAILED_CALLS = 1
EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130


def run(
    suite: Annotated[Path, typer.Argument(help="The suite file, such as configs/bench/smoke.yaml.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of records and report; one that has records of this suite is continued.",
            show_default="bench-<suite>-<time>",
        ),
    ] = None,
    policies: Annotated[str | None, typer.Option(help="Only these, comma-separated, instead of the suite's.")] = None,
    router: Annotated[str | None, typer.Option(help="Routers, comma-separated, instead of the suite's.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of the suite's.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="A Forecache that runs on the Ray cluster of this machine, instead of engines of our own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the results, as one JSON object.")] = False,
) -> None:
    """Compare cache policies on real engines under a suite's load, through HTTP.

    Starts engines by the suite's own config, plays every policy once a round on the same workflows and an emptied
    cache, and writes DIR/records.jsonl as it goes, then DIR/results.json and DIR/index.html. Policies: stock,
    session-refs, lru, lifecycle, lookahead-uniform, -markov, -oracle, -noisy(X), steps, survival, cachescout, ttl,
    reuse, reuse-uniform, -markov, -oracle, -noisy(X), unlimited, and the whole system, forecache and
    forecache-trained; those with a forecast also with +prefetch or
    +aggressive. Several engines are compared under several routers (`routers:` of the suite): session-hash, workflow,
    prefix-affinity after Ray's, power-of-two, or package.module:Class.

    Exit code: 0 all calls succeeded, 1 some failed or a round was lost (see the report), 2 the suite is wrong or the
    engines cannot be used (what had finished is reported), 130 interrupted by Ctrl-C (likewise).
    """
    from serving.benchmark.driver.run import Run
    from serving.benchmark.driver.suite import SuiteError, load_suite
    from serving.benchmark.records import RecordsError
    from serving.benchmark.workloads import WorkloadError

    try:
        loaded = load_suite(suite, _names(policies), rounds, _names(router))
        folder = out or Path(f"bench-{loaded.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        work = Run(loaded, folder, endpoint)
        _play(work)
    except (SuiteError, WorkloadError, RecordsError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    command = f"forecache bench run {suite.name}"
    results = work.results(command)
    if results["rounds"]:
        _report(results, folder, as_json)
    else:
        typer.echo("no round has finished: there is nothing to report", err=True)
    outcome = work.outcome
    if outcome.stopped is not None:
        typer.echo(f"error: {outcome.stopped}", err=True)
    if outcome.failed_calls or outcome.lost or outcome.plans["failed"] or outcome.plans["refused"]:
        typer.echo(
            f"{outcome.failed_calls} calls failed, {len(outcome.lost)} rounds were lost, of the plans "
            f"{outcome.plans['failed']} failed and {outcome.plans['refused']} were refused",
            err=True,
        )
        for line in outcome.errors[:5]:
            typer.echo(f"  {line}", err=True)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if outcome.stopped is not None:
        raise typer.Exit(EXIT_CANNOT)
    if outcome.failed_calls or outcome.lost:
        raise typer.Exit(EXIT_FAILED_CALLS)


def overhead(
    engines: Annotated[int, typer.Option(min=1, help="Engines on each side.")] = 1,
    workflows: Annotated[int, typer.Option(min=2, help="Workflows of a round.")] = 16,
    lanes: Annotated[int, typer.Option(min=1, help="Workflows at once, over all engines.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side, in turns, after one that warms up.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what Forecache adds to bare SGLang servers under the same load: throughput and time to first token.

    Both sides run at once and idle in turns; on a CPU expect a minute for each engine to start. Exit code: 0 measured,
    1 calls failed, 2 a side did not start, 130 interrupted by Ctrl-C.
    """
    from rich.console import Console

    from serving.benchmark.bare_server import BareServerError
    from serving.benchmark.driver import overhead as measured
    from serving.benchmark.driver.engines import EnginesError

    try:
        with Console(stderr=True).status("starting") as status:
            figures = measured.overhead(engines, workflows, lanes, rounds, status.update)
    except (BareServerError, EnginesError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(orjson.dumps(figures).decode())
    else:
        for name in ("bare", "forecache"):
            side = figures[name]
            typer.echo(f"{name:10} {side['tokens_per_s']:8.0f} tokens/s  TTFT {1000 * side['ttft_s']:6.1f} ms")
        typer.echo(f"throughput ×{figures['throughput_ratio']:.3f}, TTFT {1000 * figures['added_ttft_s']:+.1f} ms")
    if figures["bare"]["failed_calls"] or figures["forecache"]["failed_calls"]:
        raise typer.Exit(EXIT_FAILED_CALLS)


def _names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",") if name.strip()]


def _play(work: Run) -> None:
    """With a progress bar on standard error; where that is no terminal, with a line for each thing begun."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls, {task.fields[rounds]} rounds, left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        work.play(_Lines(time.monotonic()).show)
        return
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("starting", total=work.progress.all_calls, rounds=f"0/{work.progress.all_rounds}")

        def show(now: Progress) -> None:
            bar.update(task, description=now.now, completed=now.calls, rounds=f"{now.rounds}/{now.all_rounds}")

        work.play(show)


class _Lines:
    """Progress for a log."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._said = ""

    def show(self, now: Progress) -> None:
        if now.now == self._said:
            return
        self._said = now.now
        passed = time.monotonic() - self._started
        left = f", {passed / now.calls * (now.all_calls - now.calls):.0f} s left" if now.calls else ""
        done = f"{now.rounds}/{now.all_rounds} rounds, {now.calls}/{now.all_calls} calls"
        typer.echo(f"{passed:6.0f} s  {done}{left}: {now.now}", err=True)


def _report(results: dict[str, Any], folder: Path, as_json: bool) -> None:
    from rich.console import Console

    from serving.benchmark.report import print_results, write_report

    try:
        page = write_report(results, folder)
    except ModuleNotFoundError as error:
        typer.echo(f"note: {error}", err=True)
        page = folder / "results.json"
    if as_json:
        typer.echo(orjson.dumps(results).decode())
    else:
        print_results(results, Console())
        typer.echo(f"report: {page}")
