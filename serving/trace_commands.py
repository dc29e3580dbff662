"""`forecache traces`: files of recorded workflows, which predictors learn from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import orjson
import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from predictor_actor.traces import ReadResult

EXIT_CANNOT = 2
EXIT_INTERRUPTED = 130
# Agents that are shown; `--json` has all of them.
MOST_AGENTS = 40

app = typer.Typer(help="Import recorded workflows, and look at what has been recorded.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("import")
def import_traces(
    source: Annotated[Path, typer.Argument(help="The record: a file, or a folder of .jsonl and .json files.")],
    target: Annotated[Path, typer.Argument(help="Folder for the trace files; made if missing.")],
    format: Annotated[
        Literal["auto", "jsonl", "otel"],
        typer.Option(help="jsonl: a workflow in each line; otel: OpenTelemetry's spans; auto: as it looks."),
    ] = "auto",
    label: Annotated[
        Literal["agent", "agent+phase", "agent+tool"],
        typer.Option(help="What names a caller: its agent, or that with its phase or with the tool it asks for."),
    ] = "agent",
    as_json: AsJson = False,
) -> None:
    """Turn recorded workflows into trace files. What cannot be read is left out, counted and told.

    Exit code: 0 imported, 2 nothing could be read or written, 130 interrupted by Ctrl-C.
    """
    from predictor_actor.trace_sources import read_source
    from predictor_actor.traces import TraceError, TraceWriter

    name = re.sub(r"[^A-Za-z0-9._-]", "_", source.resolve().stem)[:100] or "import"
    calls = 0
    try:
        if target.is_dir() and any(target.glob(f"{name}-*.msgpack")):
            _fail(f"{target} has an import of {name} already: delete its {name}-*.msgpack, or choose another folder")
        with _bar() as bar:
            task = bar.add_task("", total=None, what="reading")
            result = read_source(source, format, label, lambda done, of: bar.update(task, completed=done, total=of))
            if not result.traces:
                _fail(f"{source} holds no workflow that can be read{_first_problem(result)}")
            bar.update(task, what="writing", completed=0)
            with TraceWriter(target, name, max_folder_bytes=None) as writer:
                for trace in bar.track(result.traces, task_id=task):
                    if writer.write(trace):
                        calls += len(trace.calls)
                    else:
                        result.skip(source, f"workflow {trace.workflow!r}", writer.last_reason)
    except TraceError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot write into {target}: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        done = {"workflows": writer.written, "calls": calls, **_problems(result)}
        typer.echo(orjson.dumps(done).decode())
        return
    typer.echo(f"{target}: {writer.written} workflows, {calls} calls; left out: {result.bad}")
    _tell(result)


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A trace file, or a folder of them.")],
    as_json: AsJson = False,
) -> None:
    """Say what trace files hold: workflows, calls, agents, how workflows ended, what is damaged.

    Exit code: 0 shown, 2 nothing could be read, 130 interrupted by Ctrl-C.
    """
    from predictor_actor.traces import TraceError, read_traces

    try:
        with _bar() as bar:
            task = bar.add_task("", total=None, what="reading")
            result = read_traces([path], progress=lambda done, of: bar.update(task, completed=done, total=of))
    except TraceError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    found = summary(result)
    if as_json:
        typer.echo(orjson.dumps(found).decode())
    else:
        _print(path, found)
        _tell(result)


def summary(result: ReadResult) -> dict[str, Any]:
    """What was read, in numbers; agents by their calls, the most called first."""
    agents = Counter(call.agent for trace in result.traces for call in trace.calls)
    return {
        "workflows": len(result.traces),
        "calls": agents.total(),
        "agents": dict(agents.most_common()),
        "endings": dict(Counter(trace.ending for trace in result.traces).most_common()),
        "unfinished": result.unfinished,
        **_problems(result),
    }


def _problems(result: ReadResult) -> dict[str, Any]:
    return {"bad": result.bad, "problems": [str(problem) for problem in result.problems]}


def _print(path: Path, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    endings = ", ".join(f"{count} {ending}" for ending, count in found["endings"].items())
    typer.echo(f"{path}: {found['workflows']} workflows{f' ({endings})' if endings else ''}, {found['calls']} calls")
    agents = list(found["agents"].items())
    if agents:
        table = Table("agent", "calls")
        for name, count in agents[:MOST_AGENTS]:
            table.add_row(escape(name), str(count))
        Console().print(table)
    if len(agents) > MOST_AGENTS:
        typer.echo(f"… and {len(agents) - MOST_AGENTS} agents more")
    typer.echo(f"bad records: {found['bad']}; files that end within a record: {found['unfinished']}")


def _tell(result: ReadResult) -> None:
    for problem in result.problems:
        typer.echo(f"  {problem}", err=True)


def _first_problem(result: ReadResult) -> str:
    return f": {result.bad} left out; the first: {result.problems[0]}" if result.problems else ""


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_CANNOT)


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.fields[what]}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
