"""`forecache train`: from recorded workflows to a predictor, and a table of how good it is beside the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import orjson
import typer

EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130


def train(
    traces: Annotated[list[Path], typer.Argument(help="Trace files (.msgpack, .jsonl), or folders of .msgpack files.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the checkpoint; none is written without it.")] = None,
    label: Annotated[
        Literal["agent", "agent+phase", "agent+tool"],
        typer.Option(help="In .jsonl files, what names a caller: its agent, or that with its phase or tool."),
    ] = "agent",
    split: Annotated[
        Literal["workflow", "time"],
        typer.Option(help="What is tested on: workflows drawn at random, or the latest."),
    ] = "workflow",
    test_share: Annotated[float, typer.Option(min=0.01, max=0.9, help="The share of workflows tested on.")] = 0.25,
    seeds: Annotated[int, typer.Option(min=1, help="How often all of it is done; figures are means.")] = 1,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also without each signal, and with R-GCN: as long again for each.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="At most; training stops when it no longer gains.")] = 60,
    max_s: Annotated[float | None, typer.Option(min=1, help="Seconds that one training may take.")] = None,
    text_size: Annotated[
        int, typer.Option(min=0, help="Length of the hidden states in the traces; 0: do not use them.")
    ] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    report: Annotated[Path | None, typer.Option(help="HTML page of the figures and the graph.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train the predictor of coming agents on recorded workflows, and test it on others, beside the baselines.

    Figures are of models that have not seen the tested workflows; the checkpoint is then trained on all of them.

    Exit code: 0 done, 2 the traces cannot be used or nothing can be written, 130 interrupted by Ctrl-C.
    """
    from predictor_actor.checkpoint import save_checkpoint
    from predictor_actor.model import ModelConfig
    from predictor_actor.traces import TraceError, read_traces
    from predictor_actor.train import TrainConfig, TrainError
    from predictor_actor.train import train as fit
    from serving.benchmark.predictor_study import ABLATIONS, Study, StudyError, run_study
    from serving.benchmark.report import require_pictures

    tried = ABLATIONS if ablations else ()
    config = TrainConfig(ModelConfig(text_size=text_size), epochs=epochs, max_s=max_s, threads=threads)
    try:
        if report is not None:
            require_pictures(report)
        read = read_traces(traces, label=label)
        with training_bar() as told:
            figures = run_study(read.traces, Study(split, test_share, seeds, tried, config), told)
            figures |= {"left_out": read.bad, "problems": [str(problem) for problem in read.problems]}
            if out is not None:
                told(0.0, "all traces")
                trained = fit(sorted(read.traces, key=lambda trace: trace.started_at), config, told)
                save_checkpoint(trained.predictor, out, {"study": figures})
        if report is not None:
            from serving.benchmark.train_report import write_page

            write_page(figures, read.traces, report)
    except (TraceError, StudyError, TrainError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
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

    from serving.benchmark.report import rich_table
    from serving.benchmark.train_tables import in_words, short_table

    console = Console()
    console.print(rich_table(short_table(figures), "Who comes next"))
    for line in in_words(figures):
        console.print(f"• {line}", highlight=False)


@contextmanager
def training_bar() -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error, and what tells it the share that is done and what is being done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)


def fail(message: str) -> NoReturn:
    """Ends the command with an error."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_CANNOT)
