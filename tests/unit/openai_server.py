"""A tiny HTTP server that stands in for a remote OpenAI-compatible endpoint, in unit tests of the client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Seen:
    """A request as it arrived; header names in lower case, values decoded as UTF-8."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def tag(self) -> tuple[str | None, str | None, str | None]:
        """Workflow, agent and parent of the headers."""
        names = ("x-workflow-id", "x-agent-name", "x-parent-workflow-id")
        workflow, agent, parent = (self.headers.get(name) for name in names)
        return workflow, agent, parent


def last_content(seen: Seen) -> str:
    """Answers with the last message: proves which call an answer belongs to."""
    messages = seen.body.get("messages") or [{"content": ""}]
    return str(messages[-1]["content"])


@dataclass
class OpenAIServer:
    """`with OpenAIServer() as server`: records every request and answers as told.

    answer: the text for a call. status: the HTTP status for a request. usage: the usage block of an answer.
    delay_s: how long a call takes. cut: whether a stream breaks off before its end.
    """

    answer: Callable[[Seen], str] = last_content
    status: Callable[[Seen], int] = lambda seen: 200
    usage: Callable[[Seen], dict[str, Any]] = lambda seen: {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
    }
    delay_s: float = 0.0
    cut: Callable[[Seen], bool] = lambda seen: False
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"server_state": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def calls(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "POST"]

    def ended(self) -> list[str]:
        """The paths of the DELETEs."""
        return [seen.path for seen in self.seen if seen.method == "DELETE"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: OpenAIServer

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "t"}]})

    def do_DELETE(self) -> None:
        self._json({"ended": True})

    def do_POST(self) -> None:
        seen, status = self._seen()
        time.sleep(self.server_state.delay_s)
        if status != 200:
            self._send(status, {"error": {"message": f"told to fail with {status}", "type": "test"}})
        elif seen.body.get("stream"):
            self._stream(seen)
        elif seen.path.endswith("/embeddings"):
            self._send(200, {"object": "list", "model": "tiny", "data": [], "usage": {}})
        else:
            message = {"role": "assistant", "content": self.server_state.answer(seen)}
            choice = {"index": 0, "finish_reason": "stop", "message": message, "text": message["content"]}
            self._send(200, _object("chat.completion", [choice], self.server_state.usage(seen)))

    def _seen(self) -> tuple[Seen, int]:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value.encode("latin-1").decode() for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, json.loads(raw) if raw else {})
        self.server_state.seen.append(seen)
        return seen, self.server_state.status(seen)

    def _json(self, body: dict[str, Any]) -> None:
        _, status = self._seen()
        self._send(status, body)

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        with suppress(ConnectionError):  # a client that gave up
            self.end_headers()
            self.wfile.write(data)

    def _stream(self, seen: Seen) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.send_header("x-engine-id", "engine-0")
        self.end_headers()
        for word in self.server_state.answer(seen).split(" "):
            self._event([{"index": 0, "delta": {"role": "assistant", "content": word + " "}}])
        if self.server_state.cut(seen):
            return
        self._event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            self._event([], self.server_state.usage(seen))
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> None:
        data = json.dumps(_object("chat.completion.chunk", choices, usage))
        self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """The test's output stays clean."""


def _object(kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": "c1", "object": kind, "created": 0, "model": "tiny", "choices": choices, "usage": usage}
