"""`forecache bench admission`: how many workflows to let in at once, by fixed limits and by what finds one."""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from cache_actor.admission import Bounds
from cache_actor.admission.base import DEFAULT_CONTROLLER
from serving.benchmark.contestants import ContestantError, contestant

EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130


def admission(
    trace: Annotated[Path | None, typer.Argument(help="A trace file (see the README).")] = None,
    workload: Annotated[str | None, typer.Option(help="A generated workload instead: hover, swe, …")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="key=value of the workload, such as repeat=4; again for more."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Policies of the cache, by commas.")] = "lru,reuse",
    limits: Annotated[
        str, typer.Option(help="Workflows at once, by commas: numbers, off, and names of what finds one.")
    ] = f"8,12,16,24,32,48,off,{DEFAULT_CONTROLLER}",
    rates: Annotated[str, typer.Option(help="Arrivals as multiples of the capacity, by commas.")] = "0.5,1,1.5,2,3",
    per_second: Annotated[
        float | None,
        typer.Option(help="The capacity in workflows a second; else the most that any fixed limit brings is measured."),
    ] = None,
    capacity: Annotated[float, typer.Option(help="Device tokens as a share of what --lanes workflows use.")] = 0.3,
    lanes: Annotated[int, typer.Option(min=1, help="Workflows that the capacity is a share of.")] = 16,
    burst: Annotated[
        str | None, typer.Option(help="Limits that also see a burst and its end, by commas, under the last policy.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Calls that an engine runs at once.")] = 64,
    max_wait: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds after which who waits gets in beyond the limit; who would wait long is refused."
        ),
    ] = math.inf,
    idle: Annotated[
        float,
        typer.Option(min=0, help="Seconds without a call after which a workflow gives its place to one that waits."),
    ] = math.inf,
    calibration: Annotated[str, typer.Option(help="What steps cost: a name or a file.")] = "qwen3-14b-a6000",
    seed: Annotated[int, typer.Option(help="Of the workload and of the arrivals.")] = 0,
    report: Annotated[Path | None, typer.Option(help="HTML page with the pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay open arrivals at multiples of an engine's capacity behind limits on the workflows inside.

    Prints latency, time to first token and hits of each, and how the limits that are found compare with the best
    fixed one and with none. Each of the replays takes seconds to minutes.

    Exit code: 0 done, 2 bad input, 130 interrupted by Ctrl-C (what had finished is printed).
    """
    # SGLang says at its import and start which devices it has not found.
    warnings.simplefilter("ignore")
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from serving.benchmark.replay.admission_study import AdmissionStudy, Burst, Outcome, marks, shape_of
    from serving.benchmark.replay.command import made_workload
    from serving.benchmark.replay.costs import CalibrationError, load_costs
    from serving.benchmark.report import require_pictures
    from serving.benchmark.workloads import WorkloadError

    outcomes: list[Outcome] = []
    bursts: list[Burst] = []
    complete = True
    try:
        if report is not None:
            require_pictures(report)
        its = made_workload(trace, workload, parameter or [], 1.0)(seed)
        study = AdmissionStudy(
            workload=its,
            policies=_names(policy),
            limits=_names(limits),
            rates=[float(rate) for rate in _names(rates)],
            costs=load_costs(calibration),
            shape=shape_of(its, capacity, lanes, max_running),
            seed=seed,
            bounds=Bounds(max_wait_s=max_wait, idle_s=idle),
        )
        for name in study.policies:
            for limit in (*study.limits, *_names(burst or "")):
                contestant(f"{name}@{limit}")
        with Console(stderr=True).status("starting") as status:
            per_second = per_second or study.capacity_per_s(status.update)
            for outcome in study.outcomes(per_second, status.update):
                outcomes.append(outcome)  # noqa: PERF402 (an interruption keeps those that are there)
            for limit in _names(burst or ""):
                status.update(f"burst, limit {limit}")
                bursts.append(study.burst(per_second, study.policies[-1], limit))
    except (WorkloadError, ContestantError, CalibrationError, ModuleNotFoundError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None
    except KeyboardInterrupt:
        complete = False
        if not outcomes:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    found = marks(outcomes)
    title = f"Workflows let in at once: {its.name}, {len(its.workflows)} workflows, capacity {per_second:.3g} a second"
    if report is not None:
        from serving.benchmark.replay.admission_report import write_page

        write_page(outcomes, found, bursts, title, report)
    if as_json:
        said = {
            "capacity_per_s": per_second,
            "complete": complete,
            "outcomes": [asdict(one) for one in outcomes],
            "marks": [asdict(mark) for mark in found],
            "bursts": [asdict(one) for one in bursts],
        }
        typer.echo(orjson.dumps(said).decode())
    else:
        _print(title, outcomes, found)
    if not complete:
        raise typer.Exit(EXIT_INTERRUPTED)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(title: str, outcomes: Any, found: Any) -> None:
    from serving.benchmark.replay.admission_tables import mark_table, outcome_tables
    from serving.benchmark.report import rich_table

    console = Console()
    console.print(title)
    for table in (*outcome_tables(outcomes), mark_table(found)):
        if table.rows:
            console.print(rich_table(table, table.title))
