"""200 malformed requests of 20 kinds: each gets a 4xx with an OpenAI error object, none a 500."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from running_server import MODEL, Server

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ROUNDS = 10


def post(path: str, content: bytes | str, headers: dict[str, str] | None = None) -> Callable[[httpx.Client], Any]:
    return lambda http: http.post(path, content=content, headers={"content-type": "application/json"} | (headers or {}))


def chat(**fields: Any) -> Callable[[httpx.Client], Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2} | fields
    return post(CHAT, json.dumps(body))


def text(**fields: Any) -> Callable[[httpx.Client], Any]:
    return post(TEXT, json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2} | fields))


# Each kind makes one request from a source of randomness.
KINDS: dict[str, Callable[[random.Random], Callable[[httpx.Client], Any]]] = {
    "cut off JSON": lambda r: post(CHAT, json.dumps({"model": MODEL, "messages": []})[: r.randint(1, 20)]),
    "random bytes": lambda r: post(CHAT, r.randbytes(r.randint(1, 400))),
    "empty body": lambda r: post(r.choice([CHAT, TEXT]), b""),
    "JSON that is no object": lambda r: post(CHAT, json.dumps(r.choice([[], 7, "x", None, True, [{}]]))),
    "deep nesting": lambda r: post(CHAT, "[" * r.randint(2000, 50_000)),
    "unknown model": lambda r: chat(model=f"gpt-{r.randint(0, 9)}"),
    "no model": lambda r: chat(model=r.choice([None, 7, [], {}])),
    "bad messages": lambda r: chat(messages=r.choice([None, "x", {}, [], [7], [{}], [{"role": "alien"}], [None]])),
    "bad content": lambda r: chat(messages=[{"role": "user", "content": r.choice([7, {}, [7], [{"type": "x"}]])}]),
    "bad number": lambda r: chat(
        **{r.choice(["temperature", "top_p", "seed", "n", "max_tokens"]): r.choice(["x", {}])}
    ),
    "number out of range": lambda r: chat(**r.choice([{"top_p": 5}, {"n": 0}, {"seed": 2**70}, {"max_tokens": -1}])),
    "bad tools": lambda r: chat(tools=r.choice(["x", [7], [{"type": "function"}], [{"function": 7}]])),
    "bad schema": lambda r: chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": r.choice("abc")}}},
        stream=r.choice([True, False]),
    ),
    "bad stream": lambda r: chat(stream=r.choice(["maybe", 7, {}, [True]])),
    "context too long": lambda r: chat(messages=[{"role": "user", "content": "word " * r.randint(5000, 9000)}]),
    "bad prompt": lambda r: text(prompt=r.choice(["", [], ["a", ""], [-1], [10**9], {}, 7, None, [[]], [None]])),
    "bad token in prompt": lambda r: text(prompt=[1, 2, r.choice([-5, 10**12, 99_999])]),
    "body too large": lambda r: chat(messages=[{"role": "user", "content": "x" * 250_000}]),
    "bad header": lambda r: post(
        CHAT,
        json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}),
        r.choice([{"x-workflow-final": "perhaps"}, {"x-workflow-priority": "high"}, {"x-session-final": "2"}]),
    ),
    "no such place": lambda r: r.choice(
        [
            lambda http: http.get(CHAT),
            lambda http: http.put("/v1/models"),
            lambda http: http.get("/v1/nothing"),
            lambda http: http.get("/v1/models/nothing"),
            lambda http: http.delete("/v1/workflows/nothing"),
            lambda http: http.get("/v1/workflows?state=odd"),
            lambda http: http.get("/v1/workflows?limit=many"),
        ]
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_request_gets_an_openai_error(server: Server, kind: str) -> None:
    source = random.Random(kind)
    for _ in range(ROUNDS):
        reply = KINDS[kind](source)(server.http)
        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "Traceback" not in reply.text


def test_the_engines_have_not_noticed(server: Server) -> None:
    assert len(server.engines()) == 2
    assert server.chat().status_code == 200
