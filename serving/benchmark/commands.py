"""The small commands of `forecache bench`: what one screen of code does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def compare(
    before: Annotated[Path, typer.Argument(help="A results.json, or the folder it is in.")],
    after: Annotated[Path, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Say what changed from one result of `bench run` to another, and whether it is beyond noise.

    Exit code: 0 compared, 2 a file cannot be read.
    """
    from rich.console import Console

    from serving.benchmark import compare as comparison
    from serving.benchmark.report import rich_table

    try:
        old, new = comparison.load_results(before), comparison.load_results(after)
        found = comparison.compare(old, new, (str(before), str(after)))
    except comparison.ResultsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    if as_json:
        typer.echo(orjson.dumps(found).decode())
        return
    for table in comparison.comparison_tables(found):
        Console().print(rich_table(table, table.title))


def convert(
    format: Annotated[str, typer.Argument(help="mooncake, mooncake-sessions, openai or weka.")],
    source: Annotated[Path, typer.Argument(help="The log: a file or folder.")],
    target: Annotated[Path, typer.Argument(help="The trace file to write, for the workload `trace`.")],
    as_json: AsJson = False,
) -> None:
    """Turn a log of another tool into a trace file. What cannot be read is left out, counted and told.

    Exit code: 0 converted, 2 the format is unknown, or nothing could be read or written.
    """
    from dataclasses import asdict

    from serving.benchmark import workloads

    try:
        done = workloads.convert(format, source, target)
    except workloads.WorkloadError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    if as_json:
        typer.echo(orjson.dumps(asdict(done)).decode())
        return
    typer.echo(f"{target}: {done.workflows} workflows, {done.calls} calls; left out: {done.skipped}")
    for problem in done.problems:
        typer.echo(f"  {problem}", err=True)


def calibrate(
    out: Annotated[Path, typer.Argument(help="File to write, for `forecache replay --calibration`.")],
    base_url: Annotated[
        str, typer.Option(help="The endpoint; idle, one engine, on the Ray cluster of this machine.")
    ] = "http://127.0.0.1:8000/v1",
    rounds: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many.")] = 5,
    first_id: Annotated[int, typer.Option(help="Token ids of prompts are drawn from here …")] = 10,
    last_id: Annotated[int, typer.Option(help="… to here; both must be ordinary tokens of the model.")] = 290,
) -> None:
    """Measure what a running engine's steps cost. Exit code: 0 written, 2 the endpoint failed, 130 interrupted."""
    from rich.console import Console

    from serving.benchmark.calibrate import CalibrateError
    from serving.benchmark.calibrate import calibrate as measure

    try:
        with Console(stderr=True).status("starting") as status:
            costs = measure(base_url, out.stem, range(first_id, last_id + 1), rounds, status.update)
    except CalibrateError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    costs.write(out)
    typer.echo(out.read_text(), nl=False)


def validate(
    results: Annotated[Path, typer.Argument(help="The folder that `bench run --out` has written.")],
    calibration: Annotated[str, typer.Option(help="What the engine's steps cost: a name or a file.")],
    as_json: AsJson = False,
) -> None:
    """Replay what a real engine has run, and set hit shares and latencies side by side.

    Exit code: 0 all agree within 2 points of hit share and 15 % of mean latency, 1 some do not, 2 bad input,
    130 interrupted by Ctrl-C.
    """
    from rich.console import Console
    from rich.table import Table

    from serving.benchmark import compare as comparison
    from serving.benchmark.driver.suite import SuiteError, load_suite
    from serving.benchmark.replay.costs import CalibrationError, load_costs
    from serving.benchmark.replay.validate import agreements

    try:
        with Console(stderr=True).status("starting") as status:
            suite, real = load_suite(results / "suite.yaml"), comparison.load_results(results)
            found = agreements(suite, real, load_costs(calibration), status.update)
    except (comparison.ResultsError, SuiteError, CalibrationError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not found:
        typer.echo(f"error: {results} has no finished round that could be replayed", err=True)
        raise typer.Exit(EXIT_CANNOT)
    if as_json:
        typer.echo(orjson.dumps([one.as_dict() for one in found]).decode())
    else:
        table = Table("point", "policy", "hit, real", "replay", "latency, real", "replay", "ratio", "")
        for one in found:
            hits = f"{one.hit_real:.3f}", f"{one.hit_replay:.3f}"
            times = f"{one.latency_real_s:.2f} s", f"{one.latency_replay_s:.2f} s", f"{one.latency_ratio:.3f}"
            table.add_row(one.point, one.policy, *hits, *times, "agrees" if one.agrees else "differs")
        Console().print(table)
    if not all(one.agrees for one in found):
        raise typer.Exit(1)


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `bench run --out` or `replay --out` has written.")],
    baseline: Annotated[str | None, typer.Option(help="The policy that the others are compared with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new report.", show_default="FOLDER")] = None,
    as_json: AsJson = False,
) -> None:
    """Report again on what was measured before: after an upgrade, or compared with another policy.

    Exit code: 0 reported, 2 the folder cannot be read, or the baseline was not run.
    """
    from rich.console import Console

    from serving.benchmark import compare as comparison
    from serving.benchmark.figures import results_of
    from serving.benchmark.records import RecordsError, read_records
    from serving.benchmark.report import print_results, write_report

    try:
        old = comparison.load_results(folder)
        records = read_records(folder / "records.jsonl")
        results = results_of(records, old["suite"], old["about"], old["complete"], baseline)
        page = write_report(results, out or folder)
    except (comparison.ResultsError, RecordsError, OSError, ValueError, ModuleNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    if as_json:
        typer.echo(orjson.dumps(results, option=orjson.OPT_SERIALIZE_NUMPY).decode())
        return
    print_results(results, Console())
    typer.echo(f"report: {page}")


def hits(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that `replay --out` or `bench run --out` has written.")
    ],
    name: Annotated[
        list[str] | None, typer.Option(help="Title of a folder's lines, in their order; by default its own name.")
    ] = None,
    points: Annotated[
        str | None, typer.Option(help="Names of each folder's points, by commas; by default their sizes in tokens.")
    ] = None,
) -> None:
    """Print what policies have hit as a table in Markdown, with how much of the way from `lru` to `belady` that is.

    Exit code: 0 printed, 2 a folder cannot be read, or the names do not fit.
    """
    from serving.benchmark.hit_table import hit_table, markdown
    from serving.benchmark.records import RecordsError, read_records

    titles = name or [folder.name for folder in folders]
    try:
        if len(titles) != len(folders):
            raise ValueError(f"--name was given {len(titles)} times for {len(folders)} folders")
        names = points.split(",") if points else None
        tables = [
            hit_table(read_records(folder / "records.jsonl"), title, names)
            for folder, title in zip(folders, titles, strict=True)
        ]
    except (RecordsError, OSError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    typer.echo(markdown(tables))
