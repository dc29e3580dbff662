"""`forecache bench drift`: policies on a workload that changes half-way, in virtual time."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from serving.benchmark.contestants import ContestantError, contestant

EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130
DEFAULT_POLICIES = "lru,reuse,reuse-markov"


def drift(
    before: Annotated[Path, typer.Argument(help="A trace file (see the README).")],
    after: Annotated[Path, typer.Argument(help="Another, whose workflows follow.")],
    policy: Annotated[str, typer.Option(help="Policies, by commas, as for `forecache replay`.")] = DEFAULT_POLICIES,
    capacity: Annotated[
        str, typer.Option(help="Device tokens as shares of what the workflows that run at once use; by commas.")
    ] = "0.3",
    lanes: Annotated[int, typer.Option(min=1, help="Workflows at once.")] = 16,
    calls: Annotated[str, typer.Option(help="Calls after the change that are measured: FROM:TO, by commas.")] = (
        "0:500,500:1500"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with the workflows in another order.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first round.")] = 0,
    calibration: Annotated[str, typer.Option(help="What steps cost: a name or a file.")] = "qwen3-14b-a6000",
    title: Annotated[str | None, typer.Option(help="Of the table's lines; by default the names of the files.")] = None,
) -> None:
    """Print, as a table in Markdown, what policies hit after a change of workload: as they are, and begun anew there.

    The cache is the same for both; what was learned before the change is all that differs. The lengths of the first
    trace are scaled so that it fills the cache as much as the second does.

    Exit code: 0 printed, 2 bad input, 130 interrupted.
    """
    # SGLang says at its import and start which devices it has not found.
    warnings.simplefilter("ignore")
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from serving.benchmark.hit_table import HitTable, markdown
    from serving.benchmark.replay.costs import CalibrationError, load_costs
    from serving.benchmark.replay.drift import Drift, Window
    from serving.benchmark.workloads import WorkloadError, make_workload
    from serving.benchmark.workloads.change import Change, change

    def made(number: int) -> Change:
        pair = [make_workload("trace", number, path=str(path), shuffle=True) for path in (before, after)]
        return change(pair[0], pair[1])

    try:
        shares = [float(share) for share in capacity.split(",")]
        windows = [Window.parsed(window) for window in calls.split(",")]
        policies = [contestant(name.strip()) for name in policy.split(",")]
        changes = [made(seed + number) for number in range(rounds)]
        measured = Drift(changes, policies, shares, windows, load_costs(calibration), lanes)
        with Console(stderr=True).status("starting") as status:
            found = measured.lines(status.update)
    except (WorkloadError, ContestantError, CalibrationError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    names = [f"{share:g}, calls {window}" for share in shares for window in windows]
    typer.echo(markdown([HitTable(title or f"{before.stem}, then {after.stem}", names, found)]))
