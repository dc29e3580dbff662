"""`forecache router`: what a person is shown, and what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from serving.cli import app
from serving.router_view import router_screen

STATUS = {
    "name": "workflow",
    "parameters": {"margin_s": 1.5},
    "engines": [
        {"id": "e[0]", "workflows": 4, "running": 2, "draining": True, "snapshot_age_s": 0.21},
        {"id": "e1", "workflows": 7, "running": 0, "draining": False, "snapshot_age_s": None},
    ],
    "counts": {"sticky": 40, "anchor": 3, "retried": 0},
}


def test_the_router_its_reasons_and_what_it_knows_are_shown() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(router_screen(STATUS))
    text = capture.get()
    assert "router workflow margin_s=1.5" in text
    assert "so far: 3 anchor, 40 sticky" in text
    assert "retried" not in text
    for part in ("e[0]", "0.2 s ago", "never", "yes"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ([], None),
        (["session-hash"], {"name": "session-hash", "parameters": {}}),
        (
            ["workflow", "-p", "margin_s=3", "-p", "rehome=false"],
            {"name": "workflow", "parameters": {"margin_s": 3, "rehome": False}},
        ),
    ],
)
def test_a_router_is_sent_as_the_endpoint_takes_it(
    arguments: list[str], sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, json.loads(request.content or b"null")))
        return httpx.Response(200, json=STATUS)

    client: Callable[..., httpx.Client] = httpx.Client
    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=transport, **options))
    result = CliRunner().invoke(app, ["router", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == STATUS
    assert seen == [("GET" if sent is None else "POST", "/v1/router", sent)]


@pytest.mark.parametrize("arguments", [["workflow", "-p", "margin_s"], ["-p", "margin_s=1"]])
def test_a_parameter_that_is_none_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["router", *arguments]).exit_code == 2
