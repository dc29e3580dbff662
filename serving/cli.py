"""The console script `forecache`."""

from __future__ import annotations

import json
from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from serving.config import ModelConfig
from serving.config_reference import reference
from serving.demo import demo
from serving.models import ModelError, prepare_model

app = typer.Typer(
    help="Forecache: SGLang engines on Ray Serve that keep the KV cache multi-agent workflows will need. "
    "Start a server with `serve run configs/laptop.yaml`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)


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
