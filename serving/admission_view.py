"""`forecache admission`: how many workflows run at once, for a person at a terminal."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from serving.coordinator_view import ANSWER_LIMIT_S, DEFAULT_URL, AsJson, BaseUrl, NoAnswerError, ask_endpoint, fail

_COUNTS = {
    "held": "had to wait",
    "let_in": "let in",
    "overdue": "overdue",
    "paused": "paused",
    "gave_up": "idle and gave way",
    "refused_full": "refused, too many waiting",
    "refused_wait": "refused, too long a wait",
}


def admission(
    mode: Annotated[
        str | None,
        typer.Argument(
            help="on (as many as the coordinator finds), off (all), or how many on each engine; without it: print."
        ),
    ] = None,
    base_url: BaseUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say who is let in and who waits, or switch admission while it runs. `off` lets everybody in at once.

    Exit code: 0, or 2 if there is no such mode or the endpoint does not answer.
    """
    wanted = int(mode) if mode is not None and mode.isdecimal() else mode
    with httpx.Client(base_url=base_url.rstrip("/"), timeout=ANSWER_LIMIT_S) as http:
        try:
            method, body = ("GET", None) if mode is None else ("POST", {"mode": wanted})
            status = ask_endpoint(http, method, body, path="/admission")
        except NoAnswerError as error:
            fail(str(error))
    if as_json:
        typer.echo(json.dumps(status))
    else:
        Console().print(admission_screen(status))


def admission_screen(status: dict[str, Any]) -> Group:
    """What `GET /v1/admission` says."""
    answered = status["answered_s_ago"]
    heard = "nothing heard of the coordinator" if answered is None else f"the coordinator answered {answered:.1f} s ago"
    head = Text(f"admission {status['mode']}; {heard}; {status['held']} workflows wait ({status['held_calls']} calls)")
    head.append(f" at ingress {status['ingress']}")
    counts = ", ".join(f"{count} {_COUNTS.get(name, name)}" for name, count in status["counts"].items() if count)
    if counts:
        head.append(f"\nso far: {counts}")
    engines = Table("engine", "limit", "admitted")
    for engine in status["engines"]:
        limit = engine["limit"]
        engines.add_row(Text(engine["id"]), "none" if limit is None else str(limit), str(engine["admitted"]))
    tenants = Table("tenant", "weight", "workflows", "waiting")
    for tenant in status["tenants"]:
        name = tenant["id"] or "(none named)"
        tenants.add_row(Text(name), f"{tenant['weight']:g}", str(tenant["workflows"]), str(tenant["held"]))
    return Group(head, engines, tenants)
