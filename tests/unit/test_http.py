"""Reading bodies, reply headers, and that every error is an OpenAI error object without a trace."""

from __future__ import annotations

import asyncio
import pickle
import unicodedata
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import TaskCancelledError
from starlette.testclient import TestClient
from starlette.types import Message

from cache_actor.messages import RequestIdentity
from serving.calls import SSE, Reply
from serving.errors import ApiError, engine_down, invalid_request, sse_event
from serving.http import MAX_DEPTH, CallStream, identity_headers, new_api, read_json
from serving.naming import clean_id

LIMIT = 1000
SECRET = "a secret in the program's state"


def request_of(chunks: list[bytes], headers: dict[str, str] | None = None) -> tuple[Request, list[bytes]]:
    """A request whose body comes in these chunks, and the list of those not yet read."""
    unread = list(chunks)

    async def receive() -> dict[str, Any]:
        chunk = unread.pop(0) if unread else b""
        return {"type": "http.request", "body": chunk, "more_body": bool(unread)}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive), unread


async def read(*chunks: bytes, limit: int = LIMIT, **headers: str) -> dict[str, Any]:
    request, _ = request_of(list(chunks), {name.replace("_", "-"): value for name, value in headers.items()})
    return await read_json(request, limit)


async def refused(*chunks: bytes, limit: int = LIMIT, **headers: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await read(*chunks, limit=limit, **headers)
    return caught.value


def nested(depth: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * depth + b"1" + closing * depth


class TestReadJson:
    async def test_an_object_in_any_chunks(self) -> None:
        assert await read(b'{"a": [1, "', "é".encode()[:1], "é".encode()[1:], b'"]}') == {"a": [1, "é"]}

    async def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not(self) -> None:
        body = b'{"a": 1}'
        assert await read(body, limit=len(body)) == {"a": 1}
        error = await refused(body, limit=len(body) - 1)
        assert (error.status, error.code) == (413, "body_too_large")

    async def test_a_body_announced_too_large_is_refused_unread(self) -> None:
        request, unread = request_of([b"{", b"}"], {"content-length": str(LIMIT + 1)})
        with pytest.raises(ApiError) as caught:
            await read_json(request, LIMIT)
        assert caught.value.status == 413
        assert len(unread) == 2

    async def test_without_an_announcement_reading_stops_at_the_limit(self) -> None:
        request, unread = request_of([b"x" * 400] * 10)
        with pytest.raises(ApiError) as caught:
            await read_json(request, LIMIT)
        assert caught.value.status == 413
        assert len(unread) == 7

    async def test_a_body_longer_than_announced_is_refused_too(self) -> None:
        assert (await refused(b"x" * (LIMIT + 1), content_length="5")).status == 413

    @pytest.mark.parametrize("announced", ["", "-5", "\xb2", "ten", "1.5", "9" * 5000])
    async def test_an_announcement_that_cannot_be_read_is_passed_over(self, announced: str) -> None:
        assert await read(b"{}", content_length=announced) == {}

    @pytest.mark.parametrize(
        "body",
        [b"", b" ", b"{", b"model=x", b"{'a': 1}", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"{}{}"],
    )
    async def test_what_is_not_json_is_a_400(self, body: bytes) -> None:
        error = await refused(body)
        assert error.status == 400
        assert error.message.startswith("the body is not JSON")

    @pytest.mark.parametrize("body", [b"[]", b"[{}]", b"null", b"1", b"true", b'"text"'])
    async def test_json_that_is_no_object_is_a_400(self, body: bytes) -> None:
        error = await refused(body)
        assert (error.status, "an object is needed" in error.message) == (400, True)

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 1024, 100_000])
    async def test_a_body_nested_too_deep_is_a_400(self, depth: int) -> None:
        assert (await refused(nested(depth), limit=2**20)).status == 400
        assert (await refused(b'{"a":' + nested(depth - 1, b"[", b"]") + b"}", limit=2**20)).status == 400

    async def test_a_body_nested_as_deep_as_allowed_is_read(self) -> None:
        body = await read(nested(MAX_DEPTH), limit=2**20)
        assert orjson.loads(nested(MAX_DEPTH)) == body

    @given(st.dictionaries(st.text(), st.none() | st.integers(-9, 9) | st.text() | st.lists(st.booleans())))
    async def test_it_reads_what_orjson_writes(self, body: dict[str, Any]) -> None:
        assert await read(orjson.dumps(body), limit=2**20) == body


class TestIdentityHeaders:
    @given(st.text(max_size=200), st.text(max_size=200))
    def test_any_identity_fits_in_headers_and_can_be_read_back(self, workflow: str, agent: str) -> None:
        headers = identity_headers(RequestIdentity(workflow, agent))
        assert [unquote(value) for value in headers.values()] == [workflow, agent]
        for value in headers.values():
            assert value.isascii()
            assert not any(unicodedata.category(c) == "Cc" for c in value)

    @pytest.mark.parametrize("name", ["trip-42", "a b/c:d~e", "auto-0f"])
    def test_plain_ids_stay_as_they_are(self, name: str) -> None:
        assert identity_headers(RequestIdentity(name, name)) == {"x-workflow-id": name, "x-agent-name": name}

    @pytest.mark.parametrize("name", ["a\r\nset-cookie: x", "100%", "Größe", "\u2028"])
    def test_the_rest_is_percent_encoded(self, name: str) -> None:
        value = identity_headers(RequestIdentity(name, "a"))["x-workflow-id"]
        assert value != name
        assert not {"\r", "\n"} & set(value)

    @given(st.text(min_size=1, max_size=200))
    def test_a_header_keeps_what_cleaning_kept(self, text: str) -> None:
        """No surrounding space is left that HTTP would strip."""
        if name := clean_id(text):
            value = identity_headers(RequestIdentity(name, "a"))["x-workflow-id"]
            assert value == value.strip()


def api() -> FastAPI:
    app = new_api()

    @app.get("/number/{number}")
    async def number(number: int, limit: int = 1) -> PlainTextResponse:
        return PlainTextResponse(str(number + limit))

    @app.get("/busy")
    async def busy() -> None:
        raise ApiError(429, "too much", "overloaded", retry_after_s=7)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError(SECRET)

    @app.post("/echo")
    async def echo(request: Request) -> JSONResponse:
        return JSONResponse(await read_json(request, LIMIT))

    return app


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(api(), raise_server_exceptions=False) as client:
        yield client


def error_of(response: Any) -> dict[str, Any]:
    """The error object of a reply, which is nothing but that."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return dict(body["error"])


class TestErrorReplies:
    @pytest.mark.parametrize("path", ["/nowhere", "/", "/docs", "/openapi.json", "/café"])
    def test_an_unknown_path_is_a_404_that_names_it(self, client: TestClient, path: str) -> None:
        response = client.get(path)
        assert response.status_code == 404
        error = error_of(response)
        assert error["type"] == "not_found_error"
        assert f"GET {path}" in error["message"]

    def test_a_wrong_method_is_a_405_that_says_which_are_allowed(self, client: TestClient) -> None:
        response = client.get("/echo")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert error_of(response)["type"] == "invalid_request_error"

    @pytest.mark.parametrize(("path", "name"), [("/number/many", "number"), ("/number/1?limit=ten", "limit")])
    def test_a_bad_parameter_is_a_400_that_names_it(self, client: TestClient, path: str, name: str) -> None:
        response = client.get(path)
        assert response.status_code == 400
        error = error_of(response)
        assert (error["type"], error["param"]) == ("invalid_request_error", name)
        assert name in error["message"]

    def test_an_api_error_keeps_its_status_code_and_retry_after(self, client: TestClient) -> None:
        response = client.get("/busy")
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        expected = {"message": "too much", "type": "rate_limit_error", "param": None, "code": "overloaded"}
        assert error_of(response) == expected

    def test_an_unexpected_exception_is_a_500_that_tells_nothing(
        self, client: TestClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        response = client.get("/broken")
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
        assert SECRET not in response.text
        assert SECRET in caplog.text

    def test_a_bad_body_is_an_error_object(self, client: TestClient) -> None:
        assert client.post("/echo", content=b'{"a": 1}').json() == {"a": 1}
        for body, status in ((b"[1]", 400), (b"\xff", 400), (b"", 400), (b" " * 2000, 413)):
            response = client.post("/echo", content=body)
            assert response.status_code == status
            error_of(response)


class TestApiError:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (404, "not_found_error"),
            (413, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "server_error"),
            (503, "server_error"),
        ],
    )
    def test_its_type_follows_from_its_status(self, status: int, kind: str) -> None:
        assert ApiError(status, "m").body()["error"]["type"] == kind

    def test_it_crosses_processes_whole(self) -> None:
        error = ApiError(429, "m", code="c", param="p", retry_after_s=3)
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.status, copy.body(), copy.headers()) == (429, error.body(), {"retry-after": "3"})

    def test_it_reads_as_its_message_and_can_be_hashed_as_exceptions_are(self) -> None:
        error = invalid_request("no", param="p")
        assert str(error) == "no"
        assert error in {error}

    def test_a_lost_engine_is_a_503_that_may_be_tried_again(self) -> None:
        error = engine_down("it died", 2)
        assert (error.status, error.headers()) == (503, {"retry-after": "2"})

    def test_in_a_stream_it_is_one_event_on_one_line(self) -> None:
        event = sse_event(ApiError(500, "two\n\nlines"))
        assert event.startswith(b"data: {")
        assert event.endswith(b"}\n\n")
        assert event.count(b"\n") == 2


class TestStreams:
    @pytest.mark.parametrize(
        ("reply", "event"),
        [
            (Reply(200, SSE, "e1", b"data: first\n\n"), "data: first\n\n"),
            (Reply(400, "application/json", "e1", b'{"error":{}}'), 'data: {"error":{}}\n\n'),
        ],
    )
    def test_an_engines_reply_in_a_stream_that_has_begun_is_a_part_of_it(self, reply: Reply, event: str) -> None:
        api = new_api()

        async def parts() -> AsyncGenerator[Reply | bytes, None]:
            yield b": queued\n\n"
            yield reply

        @api.get("/stream")
        async def stream() -> CallStream:
            return CallStream(Reply(200, SSE, "", b": queued\n\n"), parts(), {}, lambda: None)

        response = TestClient(api).get("/stream")
        assert response.status_code == 200
        assert response.text == ": queued\n\n: queued\n\n" + event


class TestLeaving:
    @pytest.mark.parametrize("how", ["disconnect", "cancelled"])
    async def test_a_client_that_leaves_ends_its_stream_quietly_however_it_is_told(self, how: str) -> None:
        ended: list[str] = []
        api = new_api()

        async def parts() -> AsyncGenerator[Reply | bytes, None]:
            try:
                while True:
                    yield b"data: more\n\n"
                    await asyncio.sleep(0)
            finally:
                ended.append("engine")

        @api.get("/stream")
        async def stream() -> CallStream:
            return CallStream(Reply(200, SSE, "e1", b"data: first\n\n"), parts(), {}, lambda: ended.append("call"))

        sent: list[Message] = []
        asked = 0

        async def receive() -> Message:
            nonlocal asked
            asked += 1
            if asked == 1 and how == "disconnect":
                return {"type": "http.request", "body": b"", "more_body": False}
            while len(sent) < 5:
                await asyncio.sleep(0)
            if how == "cancelled":
                raise TaskCancelledError
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/stream", "query_string": b"", "headers": []}
        await asyncio.wait_for(api(scope, receive, send), 10)
        assert ended == ["engine", "call"]
        assert sent[-1].get("more_body", True), "a stream that was cut off does not claim to be whole"
