"""The console script `forecache`."""

from __future__ import annotations

import json
from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from serving.admission_view import admission
from serving.benchmark.commands import calibrate, compare, convert, hits, report, validate
from serving.benchmark.cost_commands import cache_cost, chaos, coordinator_cost, predictor, router, soak, storage
from serving.benchmark.curves_command import predictor_curves
from serving.benchmark.driver.command import overhead, run
from serving.benchmark.replay.admission_command import admission as admission_study
from serving.benchmark.replay.command import replay
from serving.benchmark.replay.drift_command import drift
from serving.benchmark.text_command import text_signal
from serving.config import ModelConfig
from serving.config_reference import reference
from serving.coordinator_view import coordinator, top, why
from serving.demo import demo
from serving.engine_view import app as engine_app
from serving.models import ModelError, prepare_model
from serving.router_view import router as switch_router
from serving.trace_commands import app as traces_app
from serving.train_command import train

app = typer.Typer(
    help="Forecache: SGLang engines on Ray Serve that keep the KV cache multi-agent workflows will need. "
    "Start a server with `serve run configs/laptop.yaml`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("replay")(replay)
app.command("train")(train)
app.command("top")(top)
app.command("why")(why)
app.command("coordinator")(coordinator)
app.command("admission")(admission)
app.command("router")(switch_router)
app.add_typer(engine_app, name="engine")
app.add_typer(traces_app, name="traces")


bench = typer.Typer(help="Measure what Forecache costs and saves.", no_args_is_help=True)
app.add_typer(bench, name="bench")
for command in (run, report, hits, compare, convert, calibrate, validate, overhead, drift):
    bench.command(command.__name__)(command)
bench.command("predictor-curves")(predictor_curves)
bench.command("text-signal")(text_signal)
bench.command("admission")(admission_study)
bench.command("soak")(soak)
bench.command("cache-cost")(cache_cost)
bench.command("predictor")(predictor)
bench.command("chaos")(chaos)
bench.command("coordinator")(coordinator_cost)
bench.command("router")(router)
bench.command("storage")(storage)


@app.command("prepare")
def prepare(
    source: Annotated[str, typer.Argument(help="A model as in `model.source` of a config.")] = "smollm2-135m",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch and convert a model now, so that the first start of a server need not."""
    try:
        path = prepare_model(ModelConfig(source=source))
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(json.dumps({"source": source, "model_path": path}) if as_json else path)


@app.command("config")
def config() -> None:
    """Print every key that `args:` of a config file may have, with its type, default and meaning."""
    typer.echo(reference())


@app.command("version")
def version() -> None:
    """Print the versions of Forecache and of what it stands on."""
    for name in ("forecache", "sglang", "ray", "torch", "transformers"):
        typer.echo(f"{name} {distribution_version(name)}")


def main() -> None:
    app()
