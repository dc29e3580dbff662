"""`serving.client` with the real `openai` package against a local server."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from openai_server import OpenAIServer, Seen

from serving.client import agent, current, uninstall, workflow


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server
    uninstall()


@pytest.fixture
def client(server: OpenAIServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="secret") as client:
        yield client


def aclient(server: OpenAIServer, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="secret", **options)


def say(client: openai.OpenAI, text: str = "hello", **options: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], **options)


async def asay(client: openai.AsyncOpenAI, text: str = "hello", **options: Any) -> Any:
    return await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], **options)


class TestTagging:
    def test_a_call_in_the_blocks_is_tagged_and_the_workflow_ended(
        self, server: OpenAIServer, client: openai.OpenAI
    ) -> None:
        with workflow("trip-42") as opened, agent("planner"):
            answer = say(client)
        assert opened.id == "trip-42"
        assert answer.choices[0].message.content == "hello"
        assert [seen.tag for seen in server.calls()] == [("trip-42", "planner", None)]
        assert server.ended() == ["/v1/workflows/trip-42"]
        assert server.seen[-1].headers["authorization"] == "Bearer secret"
        assert "x-workflow-id" not in server.seen[-1].headers

    def test_the_order_of_the_blocks_does_not_matter(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with agent("planner"), workflow("w"):
            say(client)
        assert server.calls()[0].tag == ("w", "planner", None)

    async def test_async_calls(self, server: OpenAIServer) -> None:
        async with aclient(server) as client, workflow("a"), agent("planner"):
            await asay(client)
        assert server.calls()[0].tag == ("a", "planner", None)
        assert server.ended() == ["/v1/workflows/a"]

    async def test_streaming(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("sync"):
            chunks = list(say(client, "one two", stream=True))
        async with aclient(server) as async_client, workflow("async"):
            achunks = [chunk async for chunk in await asay(async_client, "one two", stream=True)]
        for got in (chunks, achunks):
            assert "".join(c.choices[0].delta.content or "" for c in got if c.choices) == "one two "
        assert [seen.tag[0] for seen in server.calls()] == ["sync", "async"]

    def test_text_completions_are_tagged(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w"):
            client.completions.create(model="tiny", prompt="hello")
        assert server.calls()[0].path == "/v1/completions"
        assert server.calls()[0].tag[0] == "w"
        assert server.ended() == ["/v1/workflows/w"]

    def test_nothing_is_tagged_outside_of_a_block(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w"):
            pass
        say(client)
        assert server.calls()[0].tag == (None, None, None)
        assert server.ended() == []

    def test_other_requests_are_never_tagged(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w"), agent("a"):
            client.models.list()
            client.embeddings.create(model="tiny", input="x", encoding_format="float")
            httpx.post(f"{server.origin}/elsewhere", json={})
            httpx.get(f"{server.origin}/v1/chat/completions")
            httpx.post(f"{server.origin}/v1/notcompletions", json={})
        assert len(server.seen) == 5
        assert all(seen.tag == (None, None, None) for seen in server.seen)

    def test_a_header_of_the_user_wins(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("outer"), workflow("w"), agent("a"):
            say(client, extra_headers={"x-agent-name": "mine"})
            say(client, extra_headers={"X-Workflow-Id": "theirs"})
        assert [seen.tag for seen in server.calls()] == [("w", "mine", "outer"), ("theirs", "a", None)]
        assert server.ended() == ["/v1/workflows/w"]

    def test_retries_are_tagged(self, server: OpenAIServer) -> None:
        server.status = lambda seen: 500 if seen.method == "POST" and len(server.calls()) == 1 else 200
        with openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=1) as client, workflow("w"):
            say(client)
        assert [seen.tag[0] for seen in server.calls()] == ["w", "w"]

    async def test_a_http_client_of_the_user(self, server: OpenAIServer) -> None:
        class MyClient(httpx.Client):
            pass

        with MyClient(headers={"x-mine": "1"}) as http:
            client = openai.OpenAI(base_url=server.base_url, api_key="k", http_client=http)
            with workflow("sync"):
                say(client)
        async with httpx.AsyncClient() as ahttp, workflow("async"):
            await asay(aclient(server, http_client=ahttp))
        assert [seen.tag[0] for seen in server.calls()] == ["sync", "async"]

    def test_httpx2_which_openai_uses_from_version_3_on(self, server: OpenAIServer) -> None:
        httpx2 = pytest.importorskip("httpx2")
        with workflow("w-ü"), agent("a"):
            httpx2.post(f"{server.base_url}/chat/completions", json={})
        assert server.calls()[0].tag == ("w-ü", "a", None)
        assert server.ended() == ["/v1/workflows/w-%C3%BC"]

    def test_the_authorization_of_a_http_client_goes_along(self, server: OpenAIServer) -> None:
        with httpx.Client(auth=("me", "pass")) as http, workflow("w"):
            http.post(f"{server.base_url}/chat/completions", json={})
        first, last = server.seen
        assert last.headers["authorization"] == first.headers["authorization"]
        assert last.headers["authorization"].startswith("Basic ")


class TestNesting:
    def test_blocks_restore_the_outer_value(self) -> None:
        assert current() == (None, None, None)
        with workflow("outer"), agent("a"):
            with workflow("inner"), agent("b"):
                assert current() == ("inner", "b", "outer")
                with workflow("free", parent="other"):
                    assert current() == ("free", "b", "other")
            assert current() == ("outer", "a", None)
        assert current() == (None, None, None)

    def test_one_object_can_be_entered_again(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        block = workflow("w")
        with workflow("outer"), block:
            with block:
                say(client)
                assert current() == ("w", None, "outer")
            assert current() == ("w", None, "outer")
            assert server.ended() == []
        assert server.ended() == ["/v1/workflows/w"]
        with block:
            say(client)
        assert server.ended() == ["/v1/workflows/w"] * 2

    def test_the_outermost_block_of_an_id_ends_it(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("a"):
            with workflow("b"):
                with workflow("a"):
                    say(client)
                assert server.ended() == []
            assert server.ended() == []
        assert server.ended() == ["/v1/workflows/a"]

    def test_a_fresh_id_is_generated(self) -> None:
        with workflow() as one, workflow() as two:
            assert current().workflow == two.id
        assert one.id != two.id
        assert len(one.id) == len("wf-") + 12
        assert one.id.startswith("wf-")


class TestDecorators:
    async def test_each_call_enters_afresh(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        @workflow()
        @agent("planner")
        def plan(text: str) -> str:
            """Plans."""
            say(client, text)
            return text

        @workflow()
        @agent("writer")
        async def write(text: str) -> str:
            await asyncio.sleep(0.01)
            async with aclient(server) as async_client:
                await asay(async_client, text)
            return text

        assert [plan("1"), plan("2")] == ["1", "2"]
        assert list(await asyncio.gather(write("3"), write("4"))) == ["3", "4"]
        assert plan.__doc__ == "Plans."
        tags = [seen.tag for seen in server.calls()]
        assert [tag[1] for tag in tags] == ["planner", "planner", "writer", "writer"]
        assert len({tag[0] for tag in tags}) == 4
        assert sorted(server.ended()) == sorted(f"/v1/workflows/{tag[0]}" for tag in tags)

    def test_a_generator_is_refused(self) -> None:
        with pytest.raises(TypeError, match="open the block inside"):

            @agent("a")
            def stream() -> Iterator[int]:
                yield 1


class TestConcurrency:
    async def test_20_workflows_in_tasks_are_not_mixed_up(self, server: OpenAIServer) -> None:
        server.delay_s = 0.01

        async def run(client: openai.AsyncOpenAI, n: int) -> None:
            async with workflow(f"w{n}"), agent(f"a{n}"):
                await asay(client, f"w{n} a{n}")
                await asyncio.gather(*(asay(client, f"w{n} a{n}") for _ in range(2)))

        async with aclient(server) as client:
            await asyncio.gather(*(run(client, n) for n in range(20)))
        assert_own_tags(server, calls=60)
        assert sorted(server.ended()) == sorted(f"/v1/workflows/w{n}" for n in range(20))

    def test_20_workflows_in_threads_are_not_mixed_up(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        server.delay_s = 0.01

        def run(n: int) -> None:
            with workflow(f"w{n}"), agent(f"a{n}"), ThreadPoolExecutor(2) as pool:
                say(client, f"w{n} a{n}")
                list(pool.map(lambda _: say(client, f"w{n} a{n}"), range(2)))

        threads = [threading.Thread(target=run, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_own_tags(server, calls=60)
        assert sorted(server.ended()) == sorted(f"/v1/workflows/w{n}" for n in range(20))

    def test_threads_inherit(self) -> None:
        seen = {}

        class Worker(threading.Thread):
            def run(self) -> None:
                seen["subclass"] = current()

        with workflow("w"), agent("a"):
            threads = [
                threading.Thread(target=lambda: seen.update(plain=current())),
                Worker(),
                threading.Timer(0.0, lambda: seen.update(timer=current())),
            ]
            for thread in threads:
                thread.start()
            with pytest.raises(RuntimeError, match="once"):
                threads[0].start()
        outside = threading.Thread(target=lambda: seen.update(outside=current()))
        outside.start()
        for thread in [*threads, outside]:
            thread.join()
            assert "run" not in vars(thread)
        inside = ("w", "a", None)
        assert seen == {"plain": inside, "subclass": inside, "timer": inside, "outside": (None, None, None)}

    def test_a_pool_thread_keeps_nothing_of_a_former_job(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            with workflow("one"):
                first = pool.submit(current)
            second = pool.submit(current)
            with workflow("two"):
                third = pool.submit(current)
            assert [f.result().workflow for f in (first, second, third)] == ["one", None, "two"]

    async def test_executor_and_to_thread_inherit(self) -> None:
        loop = asyncio.get_running_loop()
        async with workflow("w"):
            assert (await loop.run_in_executor(None, current)).workflow == "w"
            assert (await asyncio.to_thread(current)).workflow == "w"
        assert (await loop.run_in_executor(None, current)).workflow is None
        assert (await asyncio.to_thread(current)).workflow is None

    def test_the_last_thread_of_a_shared_id_ends_it(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        first_left = threading.Event()

        def longer() -> None:
            with workflow("shared"):
                entered.set()
                first_left.wait(5)
                say(client)

        entered = threading.Event()
        thread = threading.Thread(target=longer)
        thread.start()
        entered.wait(5)
        with workflow("shared"):
            say(client)
        assert server.ended() == []
        first_left.set()
        thread.join()
        assert server.ended() == ["/v1/workflows/shared"]


def assert_own_tags(server: OpenAIServer, calls: int) -> None:
    """Each call says in its text which workflow and agent it is of."""
    assert len(server.calls()) == calls
    for seen in server.calls():
        assert seen.tag[:2] == tuple(seen.body["messages"][0]["content"].split())


class TestEnding:
    def test_every_endpoint_that_was_called_is_told(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with (
            OpenAIServer() as other,
            openai.OpenAI(base_url=f"{other.origin}/some/prefix", api_key="b") as two,
            workflow("w"),
        ):
            say(client)
            say(two)
            say(two)
        assert server.ended() == ["/v1/workflows/w"]
        assert other.ended() == ["/some/prefix/workflows/w"]
        assert other.seen[-1].headers["authorization"] == "Bearer b"

    def test_not_when_told_to_leave_it_open(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w", end=False):
            say(client)
        assert server.ended() == []

    async def test_also_by_an_exception(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        def fail() -> None:
            say(client)
            raise KeyError("x")

        with pytest.raises(KeyError), workflow("sync"):
            fail()
        with pytest.raises(KeyError):
            async with workflow("async"):
                fail()
        assert server.ended() == ["/v1/workflows/sync", "/v1/workflows/async"]
        assert current() == (None, None, None)

    async def test_also_by_cancellation(self, server: OpenAIServer) -> None:
        server.delay_s = 0.5

        async def run() -> None:
            async with aclient(server) as client, workflow("w"):
                await asay(client)

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(run(), 0.3)
        assert len(server.calls()) == 1
        assert server.ended() == ["/v1/workflows/w"]

    @pytest.mark.parametrize("status", [404, 405, 501])
    def test_an_endpoint_that_is_not_forecache_is_silent(
        self,
        server: OpenAIServer,
        client: openai.OpenAI,
        caplog: pytest.LogCaptureFixture,
        status: int,
    ) -> None:
        server.status = lambda seen: status if seen.method == "DELETE" else 200
        with workflow("w"):
            say(client)
        assert server.ended()
        assert not warnings_of(caplog)

    async def test_failure_is_a_warning(
        self, server: OpenAIServer, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.status = lambda seen: 503 if seen.method == "DELETE" else 200
        with workflow("broken"):
            say(client)
        with workflow("down"):
            say(client)
            server.stop()
        async with workflow("down-async"):
            with pytest.raises(openai.APIConnectionError):
                await asay(aclient(server, max_retries=0))
        broken, down, down_async = warnings_of(caplog)
        assert "503" in broken
        assert "/v1/workflows/down" in down
        assert "/v1/workflows/down-async" in down_async

    def test_a_slow_endpoint_is_given_up(
        self,
        server: OpenAIServer,
        client: openai.OpenAI,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("serving.client.END_TIMEOUT_S", 0.1)

        def slow_delete(seen: Seen) -> int:
            time.sleep(seen.method == "DELETE")
            return 200

        server.status = slow_delete
        started = time.monotonic()
        with workflow("w"):
            say(client)
        assert time.monotonic() - started < 0.9
        assert len(warnings_of(caplog)) == 1

    def test_a_final_call_needs_no_delete(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w"):
            with agent("planner"):
                say(client)
            with agent("writer", final=True):
                say(client)
        assert [seen.headers.get("x-workflow-final") for seen in server.calls()] == [None, "true"]
        assert server.ended() == []

    def test_a_call_after_the_final_one_needs_it(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        with workflow("w"):
            with agent("writer", final=True):
                say(client)
            say(client)
        assert server.ended() == ["/v1/workflows/w"]

    def test_a_final_call_that_failed_needs_it(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        server.status = lambda seen: 400 if seen.method == "POST" else 200
        with workflow("w"), agent("writer", final=True), pytest.raises(openai.BadRequestError):
            say(client)
        assert server.ended() == ["/v1/workflows/w"]

    def test_a_call_after_the_block_is_no_trouble(self, server: OpenAIServer, client: openai.OpenAI) -> None:
        left = threading.Event()

        def late() -> Seen:
            left.wait(5)
            say(client)
            return server.calls()[-1]

        with ThreadPoolExecutor(1) as pool:
            with workflow("w"):
                future = pool.submit(late)
            left.set()
            assert future.result().tag[0] == "w"
        assert server.ended() == []


class TestIds:
    @pytest.mark.parametrize("bad", ["", "a\nb", "a\x00", "\x7f", "a\x85b", "x" * 129, " a", "a ", "\ud800"])
    def test_bad_ids_are_refused_with_the_value(self, bad: str) -> None:
        for make in (lambda: workflow(bad), lambda: agent(bad), lambda: workflow("w", parent=bad)):
            with pytest.raises(ValueError, match="must have") as error:
                make()
            assert repr(bad) in str(error.value)

    def test_only_strings(self) -> None:
        with pytest.raises(TypeError, match="not int: 7"):
            workflow(7)  # type: ignore[arg-type]

    def test_no_workflow_is_its_own_parent(self) -> None:
        with pytest.raises(ValueError, match="own parent"):
            workflow("w", parent="w")

    @pytest.mark.parametrize(
        ("id", "path"),
        [
            ("reise-zürich-東京", "reise-z%C3%BCrich-%E6%9D%B1%E4%BA%AC"),
            ("a/b ?#%", "a%2Fb%20%3F%23%25"),
            ("..", "%2E%2E"),
            ("x" * 128, "x" * 128),
        ],
    )
    def test_any_other_id_arrives(self, server: OpenAIServer, client: openai.OpenAI, id: str, path: str) -> None:
        with workflow(id), agent("é"):
            say(client)
        assert server.calls()[0].tag == (id, "é", None)
        assert server.ended() == [f"/v1/workflows/{path}"]


class TestUninstall:
    def test_restores_the_methods(self) -> None:
        owners = [(httpx.Client, "send"), (httpx.AsyncClient, "send")]
        owners += [(threading.Thread, "start"), (ThreadPoolExecutor, "submit")]
        uninstall()
        before = [getattr(owner, name) for owner, name in owners]
        for _ in range(2):
            with ExitStack() as stack:
                stack.enter_context(workflow())
                stack.enter_context(agent("a"))
            wrapped = [getattr(owner, name) for owner, name in owners]
            assert all(a is not b for a, b in zip(before, wrapped, strict=True))
            uninstall()
            assert [getattr(owner, name) for owner, name in owners] == before


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "forecache.client" and r.levelno == logging.WARNING]
