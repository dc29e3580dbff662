"""The small commands of `forecache bench`: two results compared, a log converted to a trace file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

EXIT_CANNOT = 2

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
