"""`forecache bench text-signal`: what the text adds to forecasts, on generated workflows and on runs of tau-bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from serving.benchmark.commands import EXIT_INTERRUPTED, AsJson
from serving.train_command import fail, training_bar


def text_signal(
    tau: Annotated[
        Path | None, typer.Option(help="Folder with runs of tau-bench, files `*_messages.jsonl`; skipped without.")
    ] = None,
    workflows: Annotated[int, typer.Option(min=8, help="Generated workflows.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="How often all is trained and tested; figures are means.")] = 5,
    tokens: Annotated[int, typer.Option(min=16, help="At most so many of a prompt's last tokens are read.")] = 128,
    states: Annotated[
        Path | None, typer.Option(help="Folder where hidden states are kept: a second run then needs no engine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the predictor with and without the hidden states of prompts, which an engine with SmolLM2 reads.

    Generated workflows have branches that their text alone decides; what runs of tau-bench show is added with --tau.

    Exit code: 0 measured, 2 an engine failed or a file cannot be used, 130 interrupted by Ctrl-C.
    """
    from serving.benchmark.engine_process import EngineProcessError
    from serving.benchmark.predictor_study import StudyError
    from serving.benchmark.text_signal import measure, workflow_sets
    from serving.benchmark.text_tau import TauError

    found: dict[str, dict[str, Any]] = {}
    try:
        sets = workflow_sets(workflows, tau)
        if tau is not None and len(sets) == 1:
            typer.echo(f"{tau} has no file *_messages.jsonl: tau-bench is skipped", err=True)
        with training_bar() as told:
            for one in sets:

                def told_set(share: float, text: str, title: str = one.title) -> None:
                    told(share, f"{title}: {text}")

                found |= measure(one, tokens, seeds, states, told_set)
    except (EngineProcessError, StudyError, TauError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(orjson.dumps(found).decode())
        return
    _print(found)


def _print(found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console

    from serving.benchmark.report import rich_table
    from serving.benchmark.train_tables import in_words, short_table

    console = Console()
    for title, figures in found.items():
        console.print(rich_table(short_table(figures), title))
        for line in in_words(figures):
            console.print(f"• {line}", highlight=False)
