"""`forecache admission`: what a person is shown, and what is said when nobody answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from serving import admission_view
from serving.cli import app

STATUS = {
    "ingress": "i[0]",
    "mode": "on",
    "limited": True,
    "answered_s_ago": 0.31,
    "held": 7,
    "held_calls": 9,
    "engines": [{"id": "e[0]", "limit": 4, "admitted": 4}, {"id": "e1", "limit": None, "admitted": 11}],
    "tenants": [{"id": "[acme]", "weight": 2.5, "held": 7, "workflows": 12}],
    "counts": {"held": 40, "let_in": 33, "overdue": 0},
}


def shown(status: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(admission_view.admission_screen(status))
    return capture.get()


def test_limits_queue_and_tenants_are_shown_as_they_are_named() -> None:
    text = shown(STATUS)
    assert "admission on; the coordinator answered 0.3 s ago; 7 workflows wait (9 calls) at ingress i[0]" in text
    assert "so far: 40 had to wait, 33 let in" in text
    assert "overdue" not in text
    for part in ("e[0]", "none", "[acme]", "2.5"):
        assert part in text


def test_a_tenant_that_nobody_named_and_a_silent_coordinator_are_said_in_words() -> None:
    tenant = {"id": None, "weight": 1.0, "held": 0, "workflows": 1}
    text = shown(STATUS | {"answered_s_ago": None, "tenants": [tenant]})
    assert "nothing heard of the coordinator" in text
    assert "(none named)" in text


@pytest.mark.parametrize(
    ("arguments", "sent"), [([], None), (["off"], {"mode": "off"}), (["16"], {"mode": 16}), (["on"], {"mode": "on"})]
)
def test_a_mode_is_sent_as_the_endpoint_takes_it(
    arguments: list[str], sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, json.loads(request.content or b"null")))
        return httpx.Response(200, json=STATUS)

    client: Callable[..., httpx.Client] = httpx.Client
    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=transport, **options))
    result = CliRunner().invoke(app, ["admission", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == STATUS
    assert seen == [("GET" if sent is None else "POST", "/v1/admission", sent)]


def test_without_an_endpoint_it_says_how_to_start_one() -> None:
    result = CliRunner().invoke(app, ["admission", "--base-url", "http://127.0.0.1:9/v1"])
    assert result.exit_code == 2
    assert "serve run" in result.output
