"""`forecache bench predictor-curves`: accuracy against the number of traces, against noise, and over a drift."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer

from serving.train_command import EXIT_INTERRUPTED, fail, training_bar

# A quarter is tested on, so that a thousand are left to learn from.
GENERATED = 1334


def predictor_curves(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="Trace files (.msgpack, .jsonl), or folders of .msgpack files.", show_default="generated"),
    ] = None,
    label: Annotated[
        Literal["agent", "agent+phase", "agent+tool"],
        typer.Option(help="In .jsonl files, what names a caller: its agent, or that with its phase or tool."),
    ] = "agent",
    seeds: Annotated[int, typer.Option(min=1, help="How often all of it is done; figures are means.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="At most; training stops when it no longer gains.")] = 60,
    report: Annotated[Path | None, typer.Option(help="HTML page with the pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw how good the predictor is, beside Markov chains: by the traces it has learned from, by the noise in them,
    and while the call graph changes half-way.

    Without traces on generated workflows. Each point is a training: minutes, or an hour with many traces and seeds.

    Exit code: 0 done, 2 the traces cannot be used or the page cannot be written, 130 interrupted by Ctrl-C.
    """
    from predictor_actor.traces import ReadResult, TraceError, read_traces
    from predictor_actor.train import TrainConfig, TrainError
    from serving.benchmark.predictor_cost import made_up
    from serving.benchmark.predictor_curves import Plan, run_curves
    from serving.benchmark.predictor_study import StudyError
    from serving.benchmark.report import require_pictures

    try:
        if report is not None:
            require_pictures(report)
        read = read_traces(traces, label=label) if traces else ReadResult(made_up(GENERATED))
        with training_bar() as told:
            figures = run_curves(read.traces, Plan(seeds=seeds, config=TrainConfig(epochs=epochs)), told)
        figures |= {"left_out": read.bad, "problems": [str(problem) for problem in read.problems]}
        if report is not None:
            from serving.benchmark.curves_report import write_page

            write_page(figures, report)
    except (TraceError, StudyError, TrainError, ModuleNotFoundError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(orjson.dumps(figures).decode())
        return
    _print(figures)


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console

    from serving.benchmark.curves_tables import curve_table, drift_table, in_words
    from serving.benchmark.report import rich_table

    console = Console()
    for table in (
        curve_table(figures["sizes"], "workflows"),
        curve_table(figures["noise"], "noise"),
        drift_table(figures),
    ):
        console.print(rich_table(table, table.title))
    for line in in_words(figures):
        console.print(f"• {line}", highlight=False)
