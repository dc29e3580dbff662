"""Workflows that wait for a place on two real engines, and what their clients see. A limit is set by hand."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from limited_server import Limited
from running_server import MODEL, eventually, run_tool


def test_new_workflows_go_where_there_is_room(limited: Limited) -> None:
    assert len(set(limited.engines)) == 2
    assert [(engine["limit"], engine["admitted"]) for engine in limited.status()["engines"]] == [(1, 1)] * 2
    assert [limited.call(workflow).headers["x-forecache-queue-ms"] for workflow in limited.inside] == ["0", "0"]


def test_a_held_call_goes_when_a_place_is_free(limited: Limited) -> None:
    began = time.monotonic()
    call = limited.call_later("next")
    shown = limited.server.http.get("/v1/workflows/next").json()
    assert (shown["state"], shown["engine"], shown["queue"]["place"]) == ("active", None, 1)
    limited.end(limited.inside[1])
    reply = call.result(timeout=30)
    assert reply.status_code == 200
    assert reply.headers["x-engine-id"] == limited.engines[1]
    assert 0 < int(reply.headers["x-forecache-queue-ms"]) <= 1000 * (time.monotonic() - began)
    assert limited.server.http.get("/v1/workflows/next").json()["queue"] is None


def test_a_stream_that_is_held_is_kept_alive_and_then_goes_on(limited: Limited) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}
    lines: list[str] = []
    with limited.server.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-workflow-id": "streams"}
    ) as reply:
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        for line in reply.iter_lines():
            lines += [line] if line else []
            if len(lines) == 2:
                assert all(line.startswith(": queued place=1 waiting=1") for line in lines)
                limited.end(limited.inside[0])
    let_in = next(number for number, line in enumerate(lines) if line.startswith(": let in x-forecache-queue-ms="))
    assert all(line.startswith("data: ") for line in lines[let_in + 1 :])
    assert json.loads(lines[let_in + 1].removeprefix("data: "))["choices"]
    assert lines[-1] == "data: [DONE]"


def test_an_openai_client_reads_a_stream_that_was_held(limited: Limited) -> None:
    client = openai.OpenAI(base_url=f"{limited.server.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    stream = client.chat.completions.create(**asked, stream=True, extra_headers={"x-workflow-id": "openai"})
    limited.end(limited.inside[0])
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] in ("length", "stop")


def test_an_error_of_a_stream_that_was_held_is_an_event(limited: Limited) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "temperature": -5, "stream": True}
    with limited.server.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-workflow-id": "errs"}
    ) as reply:
        limited.end(limited.inside[0])
        said = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert [json.loads(line.removeprefix("data: "))["error"]["param"] for line in said] == ["temperature"]


def test_too_many_that_wait_are_refused_and_told_when_to_come_again(limited: Limited) -> None:
    calls = [limited.call_later(f"waits-{number}") for number in range(4)]
    refused = limited.call("one-too-many")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 2
    assert limited.server.http.get("/v1/workflows/one-too-many").status_code == 404
    limited.switch("off")
    assert {call.result(timeout=30).status_code for call in calls} == {200}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_a_client_that_leaves_while_it_is_held_frees_its_place_in_the_queue(limited: Limited, stream: bool) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": stream}

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=limited.server.url, timeout=60) as http:
            call = asyncio.ensure_future(
                http.post("/v1/chat/completions", json=body, headers={"x-workflow-id": f"leaves-{stream}"})
            )
            held = asyncio.to_thread(eventually, lambda: limited.status()["held_calls"] == 1, "it is held", 10, 0.05)
            await asyncio.wait_for(held, 20)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(leave())
    eventually(lambda: limited.status()["held_calls"] == 0, "nobody is held", 5, every_s=0.05)
    limited.end(limited.inside[0])
    assert limited.call("comes-after").status_code == 200


def test_ending_a_workflow_that_is_held_ends_its_call_and_lets_nobody_wait_for_it(limited: Limited) -> None:
    first, second = limited.call_later("ended"), limited.call_later("stays")
    limited.end("ended")
    reply = first.result(timeout=10)
    assert (reply.status_code, reply.json()["error"]["code"]) == (410, "workflow_ended")
    limited.end(limited.inside[0])
    assert second.result(timeout=30).status_code == 200


def test_a_person_can_look_and_switch(limited: Limited) -> None:
    forecache = Path(sys.executable).with_name("forecache")
    url = ("--base-url", f"{limited.server.url}/v1")
    call = limited.call_later("until-off")
    assert "1 workflows wait" in run_tool(forecache, "admission", *url)
    assert "admission off" in run_tool(forecache, "admission", "off", *url)
    assert call.result(timeout=30).status_code == 200
    bad = limited.server.http.post("/v1/admission", json={"mode": "sometimes"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "mode")
