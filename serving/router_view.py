"""`forecache router`: who says where calls go, for a person at a terminal."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from serving.coordinator_view import ANSWER_LIMIT_S, DEFAULT_URL, AsJson, BaseUrl, NoAnswerError, ask_endpoint, fail


def router(
    name: Annotated[
        str | None,
        typer.Argument(help="workflow, session-hash, or one that `router.others` names; without it: print."),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="Of the router: key=value; may be given again.")
    ] = None,
    base_url: BaseUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say who decides where calls go and what it knows, or switch it while it runs. Workflows stay where they live.

    Exit code: 0, or 2 if there is no such router or parameter, or the endpoint does not answer.
    """
    if parameter and name is None:
        fail("--parameter goes with the name of a router")
    parameters = dict(_assigned(one) for one in parameter or ())
    with httpx.Client(base_url=base_url.rstrip("/"), timeout=ANSWER_LIMIT_S) as http:
        try:
            method, body = ("GET", None) if name is None else ("POST", {"name": name, "parameters": parameters})
            status = ask_endpoint(http, method, body, path="/router")
        except NoAnswerError as error:
            fail(str(error))
    if as_json:
        typer.echo(json.dumps(status))
    else:
        Console().print(router_screen(status))


def router_screen(status: dict[str, Any]) -> Group:
    """What `GET /v1/router` says."""
    given = "".join(f" {name}={value}" for name, value in status["parameters"].items())
    head = Text(f"router {status['name']}{given}")
    counts = ", ".join(f"{count} {why}" for why, count in sorted(status["counts"].items()) if count)
    if counts:
        head.append(f"\nso far: {counts}")
    engines = Table("engine", "workflows", "calls", "draining", "heard of")
    for engine in status["engines"]:
        age = engine["snapshot_age_s"]
        figures = [str(engine["workflows"]), str(engine["running"]), "yes" if engine["draining"] else "no"]
        engines.add_row(Text(engine["id"]), *figures, "never" if age is None else f"{age:.1f} s ago")
    return Group(head, engines)


def _assigned(given: str) -> tuple[str, Any]:
    name, separator, value = given.partition("=")
    if not separator:
        fail(f"--parameter cannot be {given!r}; give key=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
