"""`forecache replay`: policies on a workload or a recorded trace, in virtual time."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serving.benchmark.contestants import ContestantError, contestant, contestant_names

DEFAULT_POLICIES = "lru,lifecycle,lookahead-markov,reuse,reuse-markov,belady,unlimited"


def replay(
    trace: Annotated[Path | None, typer.Option(help="A trace file: one workflow a line (see the README).")] = None,
    workload: Annotated[str | None, typer.Option(help="A generated workload instead: hover, swe, …")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="key=value of the workload; again for more.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help=f"Policies, by commas: {', '.join(contestant_names())}; with parameters: reuse:guard=false; "
            "+prefetch, +aggressive."
        ),
    ] = DEFAULT_POLICIES,
    device_tokens: Annotated[
        str | None, typer.Option(help="Device tokens of an engine; several by commas. By default see --capacity.")
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Device tokens as shares of what the workflows that run at once use; by commas.")
    ] = "0.3",
    host_tokens: Annotated[int | None, typer.Option(min=0, help="Host tokens of an engine.")] = None,
    host_ratio: Annotated[str, typer.Option(help="Host tokens to a device token; several by commas.")] = "0",
    lanes: Annotated[str, typer.Option(help="Workflows at once; several by commas.")] = "16",
    rate: Annotated[float | None, typer.Option(help="Instead of lanes: workflows that arrive in a second.")] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Instead of lanes: arrivals of the trace, or of the workload.")
    ] = False,
    engines: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    router: Annotated[
        str | None,
        typer.Option(
            help="Which engine a call goes to, by commas: workflow, session-hash, prefix-affinity, power-of-two; with "
            "parameters: prefix-affinity:imbalanced_threshold=10. By default where the fewest workflows are."
        ),
    ] = None,
    lose_engine: Annotated[
        float | None, typer.Option(min=0, help="With --router: after so many seconds an engine is gone, for a minute.")
    ] = None,
    calibration: Annotated[str, typer.Option(help="What steps cost: a name or a file.")] = "qwen3-14b-a6000",
    scale: Annotated[float, typer.Option(help="All lengths times this.")] = 1.0,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Largest prefill of a step.")] = 8192,
    max_running: Annotated[int, typer.Option(min=1, help="Calls that an engine runs at once.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of another seed.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first round.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report and its records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
) -> None:
    """Replay a trace or a generated workload in virtual time, with the real cache under a model of the engine.

    Thousands of calls take seconds. Exit code: 0 done, 2 bad input, 130 interrupted (finished rounds are reported).
    """
    # SGLang says at its import and start which devices it has not found.
    warnings.simplefilter("ignore")
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from serving.benchmark.figures import results_of
    from serving.benchmark.records import read_records
    from serving.benchmark.replay.costs import CalibrationError
    from serving.benchmark.replay.sweep_run import run_sweep
    from serving.benchmark.replay.switchboard import RouterError
    from serving.benchmark.report import print_results, write_report
    from serving.benchmark.workloads import WorkloadError

    complete = True
    with tempfile.TemporaryDirectory(prefix="forecache-replay-") as scratch:
        records = (out or Path(scratch)) / "records.jsonl"
        try:
            sweep = _sweep(
                made_workload(trace, workload, parameter or [], scale),
                policy=policy,
                device_tokens=device_tokens,
                capacity=capacity,
                host_tokens=host_tokens,
                host_ratio=host_ratio,
                arrivals=_arrivals(lanes, rate, recorded, seed),
                calibration=calibration,
                routing=_routing(router, lose_engine, engines),
                common={
                    "engines": engines,
                    "chunk_tokens": chunk_tokens,
                    "max_running": max_running,
                    "rounds": rounds,
                    "seed": seed,
                    "learns": trace is None,
                },
            )
            records.parent.mkdir(parents=True, exist_ok=True)
            if records.exists():
                raise _BadOption(f"--out: {out} has the records of another run; choose another folder")
            with _progress() as bar:
                task = bar.add_task("", total=None, what="making the workload")

                def tell(name: str, calls: int, of: int) -> None:
                    bar.update(task, what=name, completed=calls, total=of)

                run_sweep(sweep, records, tell)
        except (WorkloadError, ContestantError, CalibrationError, RouterError, _BadOption) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            complete = False
            if not records.exists():
                raise typer.Exit(130) from None
        about = {"kind": "replay", "calibration": calibration, "forecache": version("forecache")}
        name = trace.stem if trace else str(workload)
        results = results_of(read_records(records), f"replay of {name}", about, complete)
        if out is not None:
            write_report(results, out)
        if as_json:
            typer.echo(json.dumps(results))
        else:
            print_results(results, Console())
    if not complete:
        raise typer.Exit(130)


class _BadOption(ValueError):
    """An option whose value makes no sense."""


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.fields[what]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def made_workload(trace: Path | None, workload: str | None, given: list[str], scale: float) -> Any:
    """What makes the workload of a seed.

    Raises:
        ValueError: not exactly one of a trace and a workload, or a parameter without a value.
    """
    from serving.benchmark.workloads import make_workload

    if (trace is None) == (workload is None):
        raise _BadOption("give either --trace FILE or --workload NAME")
    parameters: dict[str, Any] = {"scale": scale}
    if trace is not None:
        parameters |= {"path": str(trace)}
    for one in given:
        key, separator, value = one.partition("=")
        if not separator:
            raise _BadOption(f"--parameter {one!r}: give key=value")
        parameters[key] = _value(value)
    name = workload or "trace"
    return lambda seed: make_workload(name, seed, **parameters)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _arrivals(lanes: str, rate: float | None, recorded: bool, seed: int) -> list[Any]:
    from serving.benchmark.workloads import Lanes, Poisson, Times

    if rate is not None and recorded:
        raise _BadOption("give --rate or --recorded, not both")
    if rate is not None:
        return [Poisson(rate, seed)]
    if recorded:
        return [Times()]
    return [Lanes(int(count)) for count in _numbers("--lanes", lanes)]


def _numbers(option: str, text: str, zero: bool = False) -> list[float]:
    try:
        numbers = [float(one) for one in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (not zero and 0 in numbers):
        raise _BadOption(f"{option} {text!r}: give {'' if zero else 'positive '}numbers, separated by commas")
    return numbers


def _routing(router: str | None, lose_engine: float | None, engines: int) -> dict[str, Any]:
    from serving.benchmark.replay.setup import Loss

    if router is None:
        if lose_engine is not None:
            raise _BadOption("--lose-engine needs --router, which sends calls elsewhere")
        return {}
    if lose_engine is not None and engines == 1:
        raise _BadOption("--lose-engine needs --engines of 2 or more")
    loss = None if lose_engine is None else Loss(lose_engine)
    return {"routers": [name.strip() for name in router.split(",")], "loss": loss}


def _sweep(
    made: Any,
    policy: str,
    device_tokens: str | None,
    capacity: str,
    host_tokens: int | None,
    host_ratio: str,
    arrivals: list[Any],
    calibration: str,
    routing: dict[str, Any],
    common: dict[str, Any],
) -> Any:
    from serving.benchmark.replay.costs import load_costs
    from serving.benchmark.replay.sweep_run import Sweep
    from serving.benchmark.workloads import Lanes

    policies = [contestant(name.strip()) for name in policy.split(",")]
    workload = made(common["seed"])
    if device_tokens is not None:
        sizes = [int(tokens) for tokens in _numbers("--device-tokens", device_tokens)]
    else:
        at_once = arrivals[0].lanes if isinstance(arrivals[0], Lanes) else 16
        footprint = workload.statistics().live_footprint * at_once / common["engines"]
        sizes = [max(1, round(share * footprint)) for share in _numbers("--capacity", capacity)]
    ratios = _numbers("--host-ratio", host_ratio, zero=True)
    if host_tokens is not None:
        if len(sizes) > 1:
            raise _BadOption("--host-tokens goes with one device size; give --host-ratio for several")
        ratios = [host_tokens / sizes[0]]
    return Sweep(made, policies, load_costs(calibration), arrivals, sizes, ratios, **common, **routing)
