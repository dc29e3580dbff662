"""The logic behind `forecache engine`: an engine's cache, for a person at a terminal."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from rich.table import Table

COLOURS = {"retired": "dim", "active": "green", "dormant": "yellow", "new": "white"}

app = typer.Typer(help="Look into the engines of a running endpoint.", no_args_is_help=True)

BaseUrl = Annotated[str, typer.Option(help="The endpoint.")]
Engine = Annotated[str | None, typer.Option(help="An engine's id; by default each of them in turn.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DEFAULT_URL = "http://127.0.0.1:8000/v1"


@app.command("dump")
def dump(base_url: BaseUrl = DEFAULT_URL, engine: Engine = None, as_json: AsJson = False) -> None:
    """Print what each engine's cache holds: the prefix tree with owners, values, state and tiers."""
    answers = _ask(base_url, engine, "dump")
    if as_json:
        typer.echo(json.dumps(answers))
        return
    console = Console()
    for name, answer in answers.items():
        console.print(f"[bold]engine {name}[/bold]", answer.get("error") or f"policy {answer['policy']}")
        if "nodes" in answer:
            console.print(tree_table(answer["nodes"]))
        if answer.get("left_out"):
            console.print(f"… and {answer['left_out']} nodes more")


@app.command("check")
def check(base_url: BaseUrl = DEFAULT_URL, engine: Engine = None, as_json: AsJson = False) -> None:
    """Check the books of each engine's cache against its tree, by brute force. Pauses the engine while it runs."""
    answers = _ask(base_url, engine, "check")
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        for name, answer in answers.items():
            typer.echo(f"engine {name}: {'consistent' if answer.get('consistent') else answer.get('error')}")
    if not all(answer.get("consistent") for answer in answers.values()):
        raise typer.Exit(1)


def tree_table(nodes: list[dict[str, Any]]) -> Table:
    """One row a node, indented by its depth; the colour says its state."""
    learned = any(node["chance"] for node in nodes)
    table = Table("tokens", "tier", "state", "value", "owners", *(["chance of reuse"] if learned else []))
    for node in nodes:
        owners = [f"{workflow}: {', '.join(agents)}" for workflow, agents in node["owners"].items()]
        more = node["owner_count"] - len(owners)
        value = "" if node["value"] is None else f"{node['value']:.2f}"
        shared = " shared" if node["shared"] else ""
        table.add_row(
            "  " * node["depth"] + str(node["tokens"]),
            node["tier"],
            node["state"] + shared,
            value,
            "; ".join(owners) + (f"; and {more} more" if more else ""),
            *([chance_text(node["chance"])] if learned else []),
            style=COLOURS[node["state"]],
        )
    return table


def chance_text(chances: dict[str, Any] | None) -> str:
    """The chance of a node in each tier, and the most special evidence for it."""
    lines: list[str] = []
    for tier, found in (chances or {}).items():
        why = "nothing like it was seen"
        if found["evidence"]:
            best = found["evidence"][-1]
            parts = ", ".join(f"{name} {part}" for name, part in best["situation"].items())
            why = f"{best['mean']:.0%} of {best['observations']:.0f} seen: {parts}"
        lines.append(f"{tier} {found['chance']:.0%} ({why})")
    return "\n".join(lines)


def _ask(base_url: str, engine: str | None, what: str) -> dict[str, Any]:
    try:
        with httpx.Client(base_url=base_url.rstrip("/"), timeout=60) as http:
            found = [one["id"] for one in http.get("/engines").raise_for_status().json()["data"]]
            if engine is not None and engine not in found:
                _fail(f"there is no engine {engine!r}; there are {', '.join(found) or 'none'}")
            return {
                name: http.get(f"/engines/{name}/cache", params={"what": what}).raise_for_status().json()
                for name in ([engine] if engine else found)
            }
    except (httpx.HTTPError, ValueError, KeyError) as error:
        _fail(f"{base_url} does not answer as a Forecache endpoint ({error}); start one: serve run configs/laptop.yaml")


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
