"""`forecache top`, `forecache why` and `forecache coordinator`: the coordinator, for a person at a terminal."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, NoReturn
from urllib.parse import quote

import httpx
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

DEFAULT_URL = "http://127.0.0.1:8000/v1"
BaseUrl = Annotated[str, typer.Option(help="The endpoint.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ANSWER_LIMIT_S = 10.0

EXIT_CANNOT = 2
_STYLES = {
    "evicted": "red",
    "end": "dim",
    "table": "green",
    "prefetch": "cyan",
    "receipt": "cyan",
    "held": "yellow",
    "let_in": "yellow",
    "paused": "magenta",
}


class NoAnswerError(Exception):
    """The endpoint does not answer, or not with what was asked for; the message says what to do."""


class UnknownWorkflowError(Exception):
    """The coordinator does not know a workflow."""


def top(
    base_url: BaseUrl = DEFAULT_URL,
    period: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    workflows: Annotated[int, typer.Option(min=1, max=200, help="How many of the latest workflows.")] = 15,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch engines, workflows and what is expected of them. Ctrl-C ends it.

    Exit code: 0, or 2 if the endpoint does not answer (with --once: at the first look).
    """
    with httpx.Client(base_url=base_url.rstrip("/"), timeout=ANSWER_LIMIT_S) as http:
        try:
            if as_json or once:
                status, latest = _look(http, workflows)
                if as_json:
                    typer.echo(json.dumps(status | {"latest": latest}))
                else:
                    Console().print(screen(status, latest))
                return
            _watch(http, period, workflows)
        except NoAnswerError as error:
            fail(str(error))
        except KeyboardInterrupt:
            return


def why(
    workflow: Annotated[str, typer.Argument(help="Its id.")],
    base_url: BaseUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say what is expected of a workflow, and what was decided about its cache entries and why, the oldest first.

    Exit code: 0, 1 if the coordinator does not know the workflow, 2 if the endpoint does not answer.
    """
    with httpx.Client(base_url=base_url.rstrip("/"), timeout=ANSWER_LIMIT_S) as http:
        try:
            found = ask_endpoint(http, "GET", path=f"/coordinator/workflows/{quote(workflow, safe='')}")
        except NoAnswerError as error:
            fail(str(error))
        except UnknownWorkflowError as error:
            typer.echo(f"{error}: it has made no call, or ended long ago", err=True)
            raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console()
    console.print(Text(f"{found['id']}: {_state(found)}, {found['calls']} calls, on engine {found['engine'] or '–'}"))
    if (forecast := found["forecast"]) is not None:
        console.print(Text(f"expected next: {expected(forecast)} ({forecast['model']})"))
    for engine, tokens in found["residency"].items():
        held = f"{tokens['device']} tokens on the device, {tokens['host']} on the host alone"
        console.print(Text(f"on engine {engine}: {held}"))
    table = Table("time", "engine", "what", "why", box=None)
    for decision in found["decisions"]:
        at = time.strftime("%H:%M:%S", time.localtime(decision["at"])) + f".{int(decision['at'] % 1 * 1000):03d}"
        row = (at, decision["engine"], decision["what"], decision["text"])
        table.add_row(*(Text(one) for one in row), style=_STYLES.get(decision["what"]))
    console.print(table)


def coordinator(
    mode: Annotated[
        str | None, typer.Argument(help="on, shadow (plan and account, do nothing) or off; without it: print the mode.")
    ] = None,
    base_url: BaseUrl = DEFAULT_URL,
) -> None:
    """Switch the coordinator while it runs. `off` takes back all that engines were told of the future.

    Exit code: 0, or 2 if there is no such mode or the endpoint does not answer.
    """
    with httpx.Client(base_url=base_url.rstrip("/"), timeout=ANSWER_LIMIT_S) as http:
        try:
            status = ask_endpoint(http, "GET") if mode is None else ask_endpoint(http, "POST", {"mode": mode})
        except NoAnswerError as error:
            fail(str(error))
    typer.echo(status["mode"])


def screen(status: dict[str, Any], latest: list[dict[str, Any]]) -> Group:
    """One look, as `top` shows it."""
    predictor = status["predictor"] or {}
    accuracy = ", ".join(
        f"{share:.0%} at k={k}" for k, share in enumerate(status["accuracy"], start=1) if share is not None
    )
    counts = status["counts"]
    prompt = counts.get("prompt_tokens", 0)
    hits = ""
    if prompt:
        shares = {tier: counts.get(f"hit_{tier}", 0) / prompt for tier in ("device", "host", "storage")}
        if not shares["storage"]:
            del shares["storage"]
        each = ", ".join(f"{tier} {share:.1%}" for tier, share in shares.items())
        hits = f"; hits {sum(shares.values()):.1%} ({each})"
    serving = predictor.get("error") or predictor.get("model") or "none"
    head = Text(f"coordinator {status['mode']}; {status['workflows']} workflows{hits}\npredictor: {serving}")
    if accuracy:
        head.append(f"; right: {accuracy}")
    engines = Table("engine", "calls", "waiting", "workflows", "in", "limit", "held", "free", "active", "retired")
    for column in ("host free", "plan", "age"):
        engines.add_column(column)
    for engine in status["engines"]:
        pools, admission = engine["pools"], engine["admission"]
        figures = [pools.get(name) for name in ("free", "device_active", "device_retired", "host_free")]
        engines.add_row(
            engine["id"],
            str(engine["running"]),
            str(engine["waiting"]),
            str(engine["workflows"]),
            str(admission["admitted"]),
            limit_text(admission),
            str(admission["held"]),
            *("–" if figure is None else f"{figure:,}" for figure in figures),
            str(engine["plan"]),
            f"{engine['heard_s_ago']:.1f} s",
        )
    table = Table("workflow", "engine", "calls", "latest", "expected next", "end", "on device", "on host")
    for workflow in latest:
        forecast = workflow["forecast"]
        tokens = workflow["residency"].get(workflow["engine"] or "", {})
        table.add_row(
            Text(workflow["id"]),
            workflow["engine"] or "–",
            f"{workflow['calls']}{' …' if workflow['running'] else ''}",
            Text(workflow["agents"][-1] if workflow["agents"] else "–"),
            Text(expected(forecast) if forecast else "–"),
            f"{1 - forecast['survival'][0]:.0%}" if forecast else "–",
            *(f"{tokens[name]:,}" if name in tokens else "–" for name in ("device", "host")),
        )
    return Group(head, engines, table)


def limit_text(admission: dict[str, Any]) -> str:
    """The limit of workflows; in brackets what it would be in another mode."""
    limit, found = admission["limit"], admission["found"]
    if limit is None and found is not None:
        return f"({found})"
    return "–" if limit is None else str(limit)


def expected(forecast: dict[str, Any], most: int = 3) -> str:
    """The likeliest agents with their probabilities."""
    named = [f"{agent} {chance:.0%}" for agent, chance in list(forecast["next"].items())[:most]]
    return ", ".join(named) or "nobody"


def _watch(http: httpx.Client, period: float, workflows: int) -> None:
    """An endpoint that goes away while it is watched is waited for."""
    seen = False
    with Live(Text("connecting …"), auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(screen(*_look(http, workflows)), refresh=True)
                seen = True
            except NoAnswerError as error:
                if not seen:
                    raise
                live.update(Text(f"waiting: {error}"), refresh=True)
            time.sleep(period)


def _look(http: httpx.Client, workflows: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    latest = ask_endpoint(http, "GET", path=f"/coordinator/workflows?limit={workflows}")
    return ask_endpoint(http, "GET"), latest["data"]


def ask_endpoint(http: httpx.Client, method: str, body: Any = None, path: str = "/coordinator") -> dict[str, Any]:
    """What the endpoint says to a request. Raises NoAnswerError, or UnknownWorkflowError."""
    try:
        reply = http.request(method, path, json=body)
        said: dict[str, Any] = reply.json()
        if reply.status_code == 200:
            return said
        code, message = said["error"]["code"], said["error"]["message"]
    except httpx.HTTPError as error:
        raise NoAnswerError(
            f"{http.base_url} does not answer ({error}); start one: serve run configs/laptop.yaml"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise NoAnswerError(f"{http.base_url} does not answer as a Forecache endpoint") from error
    raise (UnknownWorkflowError if code == "workflow_not_found" else NoAnswerError)(message)


def _state(found: dict[str, Any]) -> str:
    if not found["living"]:
        return "ended"
    return "running" if found["running"] else "between two calls"


def fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_CANNOT)
