"""HTTP without Serve: reading bodies, error handlers, reply headers."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray.exceptions import TaskCancelledError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cache_actor.messages import RequestIdentity
from serving.calls import SSE, Reply
from serving.errors import ApiError, invalid_request, sse_event

MAX_DEPTH = 256

logger = logging.getLogger("forecache")


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ApiError: 413 for a body of more than `limit` bytes, 400 for one that is not a JSON object or is nested more
            than `MAX_DEPTH` deep.
    """
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    data = bytearray()
    if size <= limit:
        async for chunk in request.stream():
            data += chunk
            size = max(size, len(data))
            if size > limit:
                break
    if size > limit:
        raise ApiError(413, f"the body has {size} bytes or more; the limit is {limit}", code="body_too_large")
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid_request(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid_request(f"the body is a JSON {type(body).__name__}; an object is needed")
    if _deeper_than(MAX_DEPTH, body):
        raise invalid_request(f"the body is nested more than {MAX_DEPTH} deep")
    return body


def _deeper_than(limit: int, value: Any) -> bool:
    """Without recursion: orjson reads 1024 levels, more than Python's own json and pickle can follow."""
    containers = (dict, list)
    level = [value]
    for _ in range(limit):
        children = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for group in children for child in group if isinstance(child, containers)]
        if not level:
            return False
    return True


def identity_headers(identity: RequestIdentity) -> Mapping[str, str]:
    """Identity as reply headers; what a header cannot carry is percent-encoded."""
    plain = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
    return {
        "x-workflow-id": quote(identity.workflow, safe=plain),
        "x-agent-name": quote(identity.agent, safe=plain),
    }


class CallStream(StreamingResponse):
    """The rest of a stream. `over` is called when it ends, in whatever way, begun or not."""

    def __init__(
        self,
        reply: Reply,
        parts: AsyncGenerator[Reply | bytes, None],
        headers: Mapping[str, str],
        over: Callable[[], None],
    ) -> None:
        super().__init__(self._body(reply, parts), reply.status, headers, reply.media_type)
        self._parts = parts
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._parts.aclose()
            finally:
                self._over()

    @staticmethod
    async def _body(reply: Reply, parts: AsyncGenerator[Reply | bytes, None]) -> AsyncIterator[bytes]:
        yield reply.body
        try:
            async for part in parts:
                yield part if isinstance(part, bytes) else _as_event(part)
        except ApiError as error:
            yield sse_event(error)


def _as_event(reply: Reply) -> bytes:
    """An engine's reply in a stream that has begun before it: what is no stream itself is an error."""
    return reply.body if reply.media_type == SSE else b"data: " + reply.body + b"\n\n"


class CancelledIsDisconnect:
    """A client that leaves is always told as `http.disconnect`.

    When Serve's proxy cancels a request, Ray also cancels the task that fetches its messages, and whichever is noticed
    first decides what the application sees: `receive()` may raise what Ray raised instead of telling of the disconnect.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def next_message() -> Message:
            try:
                return await receive()
            except TaskCancelledError:
                return {"type": "http.disconnect"}

        await self._app(scope, next_message if scope["type"] == "http" else receive, send)


def new_api() -> FastAPI:
    """A FastAPI application whose every error is an OpenAI error object."""
    api = FastAPI(title="Forecache", docs_url=None, redoc_url=None, openapi_url=None)
    api.add_middleware(CancelledIsDisconnect)
    api.add_exception_handler(ApiError, _api_error)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(RequestValidationError, _bad_parameter)
    api.add_exception_handler(Exception, _unexpected)
    return api


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    response = await _api_error(request, ApiError(error.status_code, detail))
    response.headers.update(error.headers or {})
    return response


async def _bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _api_error(request, invalid_request(f"{name}: {first['msg']}, got {first['input']!r}", param=name))


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("forecache: %s %s failed", request.method, request.url.path, exc_info=error)
    return await _api_error(request, ApiError(500, "internal error; the log of the ingress has the reason"))
