"""The commands of `forecache bench` that measure costs, and those that try what breaks. Each imports what it needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from serving.benchmark.budgets import Budget


def soak(
    base_url: Annotated[str, typer.Option(help="The endpoint, on the Ray cluster of this machine.")] = (
        "http://127.0.0.1:8000/v1"
    ),
    duration: Annotated[float, typer.Option(help="Seconds.", min=1)] = 600,
    lanes: Annotated[int, typer.Option(help="Workflows at once.", min=1)] = 12,
    plans_per_s: Annotated[float, typer.Option(help="Plans a second, to each engine.", min=0.1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load running engines at random under a stream of plans, then check their books.

    Exit code: 0 no fault, 1 calls failed or an engine's books are wrong, 2 no engine serves.
    """
    from serving.benchmark.soak import SoakError, run_soak

    try:
        result = run_soak(base_url, duration, lanes, plans_per_s, seed)
    except SoakError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(result))
    else:
        for name, count in sorted(result["counts"].items()):
            typer.echo(f"{name:24} {count}")
        for line in result["errors"]:
            typer.echo(f"error: {line}")
        typer.echo("the books of every engine are right" if result["consistent"] else f"WRONG: {result['checks']}")
    if result["errors"] or not result["consistent"]:
        raise typer.Exit(1)


def cache_cost(
    starts: Annotated[
        int, typer.Option(min=0, help="Engines are started so often, some five minutes each time; 0: none are.")
    ] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many rounds, of each start.")] = 3,
    requests: Annotated[int, typer.Option(min=1, help="Calls that each engine answers in a round.")] = 200,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a figure misses its budget.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the cache's bookkeeping alone, and engines with Forecache's cache against SGLang's own, in turns.

    Exit code: 0 measured, 1 a budget is missed (with --check), 2 an engine failed, 130 interrupted by Ctrl-C.
    """
    from serving.benchmark import cache_cost as cost
    from serving.benchmark.engine_process import EngineProcessError

    try:
        with _measuring() as told:
            figures = cost.measure(rounds, requests, starts, told)
    except EngineProcessError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    _beside(cost.BUDGETS, figures, check, as_json)


def predictor(
    rounds: Annotated[int, typer.Option(min=1, help="Batches that a time is the median of.")] = 30,
    load: Annotated[
        bool, typer.Option("--load", help="Instead two replicas under 500 requests a second, on a Ray of their own.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a figure misses its budget.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what forecasting costs: batches, training, memory. A minute or so on generated workflows.

    Exit code: 0 measured, 1 a budget is missed (with --check), 130 interrupted by Ctrl-C.
    """
    from serving.benchmark import predictor_cost as cost
    from serving.benchmark import predictor_load

    with _measuring() as told:
        figures = predictor_load.measure(told) if load else cost.measure(rounds, told)
    _beside(predictor_load.BUDGETS if load else cost.BUDGETS, figures, check, as_json)


def chaos(
    base_url: Annotated[str, typer.Option(help="The endpoint, all of it on this machine, used by nobody else.")] = (
        "http://127.0.0.1:8000/v1"
    ),
    duration: Annotated[float, typer.Option(help="Seconds.", min=10)] = 600,
    lanes: Annotated[int, typer.Option(help="Workflows at once.", min=1)] = 6,
    seed: Annotated[int, typer.Option(help="Of the load and of who is killed when.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill coordinator, predictor, engines and schedulers at random times under load, and say what became of the calls.

    Exit code: 0 no call failed that need not have and all came back, 1 otherwise, 2 the endpoint cannot be tested,
    130 interrupted by Ctrl-C.
    """
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from serving.benchmark.chaos import Chaos, ChaosError

    run = Chaos(base_url, lanes, seed)
    try:
        with Progress(TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task("starting", total=1.0)

            def told(share: float, text: str) -> None:
                bar.update(task, completed=share, description=text)

            result = asyncio.run(run.run(duration, told))
    except ChaosError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(result))
    else:
        for name, count in sorted(result["counts"].items()):
            typer.echo(f"{name:24} {count}")
        for name, times in result["recovery_s"].items():
            typer.echo(f"{name:24} back after {times['median']:.1f} s, at most {times['max']:.1f} s")
        for line in result["errors"]:
            typer.echo(f"error: {line}")
    if result["failed"]:
        raise typer.Exit(1)


def coordinator_cost(
    engines: Annotated[int, typer.Option(min=1, help="Made-up engines, with 200 workflows each.")] = 64,
    duration: Annotated[float, typer.Option(min=5, help="Seconds.")] = 60,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a figure misses its budget.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the coordinator: a real one with a real predictor, and made-up engines that report 5 times a second.

    Exit code: 0 measured, 1 a budget is missed (with --check), 130 interrupted by Ctrl-C.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from serving.benchmark import coordinator_cost as cost

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1.0)

            def told(share: float, text: str) -> None:
                bar.update(task, completed=share, description=text)

            figures = cost.measure(cost.Run(engines, duration), told)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _beside(cost.BUDGETS, figures, check, as_json)


def router(
    engines: Annotated[int, typer.Option(min=1, help="Made-up engines, with 200 workflows each.")] = 64,
    decisions: Annotated[int, typer.Option(min=10, help="How many are timed.")] = 5000,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a figure misses its budget.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the choice of an ingress and of an engine, and the snapshots that this one is made from, under 50 calls a
    second on each engine.

    Exit code: 0 measured, 1 a budget is missed (with --check), 130 interrupted by Ctrl-C.
    """
    from serving.benchmark import ingress_cost
    from serving.benchmark import router_cost as cost

    with _measuring() as told:
        figures = ingress_cost.measure(decisions) | cost.measure(engines, decisions, told)
    _beside((*ingress_cost.BUDGETS, *cost.BUDGETS), figures, check, as_json)


def storage(
    source: Annotated[str, typer.Option(help="The model, as `model.source` of a config.")] = "smollm2-135m",
    folder: Annotated[str | None, typer.Option(help="Where files are kept meanwhile: on the disk to measure.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=256, help="Tokens of each prompt.")] = 2048,
    rounds: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many rounds.")] = 7,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a figure misses its budget.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the time to the first token with the prompt loaded from storage, and with it computed, in turns.

    Exit code: 0 measured, 1 a budget is missed (with --check), 2 an engine failed, 130 interrupted by Ctrl-C.
    """
    from serving.benchmark import storage_cost as cost
    from serving.benchmark.engine_process import EngineProcessError

    try:
        with _measuring() as told:
            figures = cost.measure(source, folder, prompt_tokens, rounds, told)
    except (EngineProcessError, cost.NothingLoadedError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    _beside(cost.BUDGETS, figures, check, as_json)


@contextmanager
def _measuring() -> Iterator[Callable[[str], None]]:
    """What is told stands in the terminal while it is measured; Ctrl-C exits with 130."""
    from rich.console import Console

    try:
        with Console(stderr=True).status("starting") as status:
            yield status.update
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _beside(budgets: Sequence[Budget], figures: dict[str, float], check: bool, as_json: bool) -> None:
    """Prints figures, with their budgets if for people; exit code 1 if one is missed and they are checked."""
    from rich.console import Console

    from serving.benchmark.budgets import missed, print_table

    if as_json:
        typer.echo(json.dumps(figures))
    else:
        print_table(figures, budgets, Console())
    if check and (names := missed(figures, budgets)):
        typer.echo(f"over budget: {', '.join(names)}", err=True)
        raise typer.Exit(1)
