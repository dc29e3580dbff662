"""One endpoint over two real engines."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from running_server import MODEL, Server, eventually, run_tool

from serving.client import agent, workflow


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


class TestRouting:
    def test_the_calls_of_a_workflow_stay_on_one_engine_and_eight_workflows_use_both(self, server: Server) -> None:
        def engines_of(name: str) -> set[str]:
            return {
                server.chat(f"call {i}", {"x-workflow-id": name, "x-agent-name": f"agent-{i}"}).headers["x-engine-id"]
                for i in range(4)
            }

        with ThreadPoolExecutor(8) as pool:
            used = list(pool.map(engines_of, [f"routing-{i}" for i in range(8)]))
        assert all(len(engines) == 1 for engines in used)
        assert set.union(*used) == {engine["id"] for engine in server.engines()}

    def test_replies_say_why_their_engine_was_chosen(self, server: Server) -> None:
        first, second = (server.chat(f"call {i}", {"x-workflow-id": "routing-why"}) for i in range(2))
        assert first.headers["x-forecache-route"] in ("least-loaded", "anchor")
        assert second.headers["x-forecache-route"] == "sticky"

    def test_an_engine_that_drains_is_left_by_its_workflows_and_cuts_no_call(self, server: Server) -> None:
        names = [f"draining-{i}" for i in range(6)]
        homes = {name: server.chat(headers={"x-workflow-id": name}).headers["x-engine-id"] for name in names}
        left = homes[names[0]]

        def drain(draining: bool) -> None:
            reply = server.http.post(f"/v1/engines/{left}", json={"draining": draining})
            assert reply.json() == {"id": left, "draining": draining}

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.chat, "long", {"x-workflow-id": names[0]}, max_tokens=1500, ignore_eos=True)
            eventually(lambda: server.engine(left).get("running"), "it runs")
            drain(True)
            try:
                eventually(
                    lambda: all(
                        server.chat(headers={"x-workflow-id": name}).headers["x-engine-id"] != left
                        for name in names[1:]
                    ),
                    "those between two calls have moved",
                )
                reply = running.result()
                assert reply.headers["x-engine-id"] == left
                assert reply.json()["usage"]["completion_tokens"] == 1500
                eventually(
                    lambda: server.chat(headers={"x-workflow-id": names[0]}).headers["x-engine-id"] != left,
                    "the last has moved",
                )
                assert server.chat(headers={"x-workflow-id": "draining-new"}).headers["x-engine-id"] != left
                log = f"/v1/coordinator/workflows/{names[0]}"
                eventually(
                    lambda: (
                        ("left", left)
                        in [(one["what"], one["engine"]) for one in server.http.get(log).json()["decisions"]]
                    ),
                    "what it left behind may go",
                )
            finally:
                drain(False)

    @pytest.mark.parametrize("asked", [{}, {"draining": 1}, {"draining": "yes"}])
    def test_what_is_no_word_on_draining_is_refused(self, server: Server, asked: dict[str, Any]) -> None:
        engine = server.engines()[0]["id"]
        assert server.http.post(f"/v1/engines/{engine}", json=asked).status_code == 400
        assert server.http.post("/v1/engines/nobody", json={"draining": True}).status_code == 404

    def test_the_router_is_switched_while_it_runs_and_workflows_stay(self, server: Server) -> None:
        def router(*arguments: str) -> dict[str, Any]:
            forecache = Path(sys.executable).with_name("forecache")
            said = run_tool(forecache, "router", *arguments, "--json", "--base-url", f"{server.url}/v1")
            return dict(json.loads(said))

        first = server.chat(headers={"x-workflow-id": "routing-switched"})
        try:
            status = router("session-hash")
            assert (status["name"], len(status["engines"])) == ("session-hash", 2)
            second = server.chat(headers={"x-workflow-id": "routing-switched"})
            assert second.headers["x-engine-id"] == first.headers["x-engine-id"]
            assert second.headers["x-forecache-route"] == "sticky"
            assert server.chat(headers={"x-workflow-id": "routing-hashed"}).headers["x-forecache-route"] == "hash"
            assert router()["counts"]["hash"] >= 1
        finally:
            assert router("workflow")["name"] == "workflow"
        ages = [engine["snapshot_age_s"] for engine in router()["engines"]]
        assert all(age is not None and age < 5 for age in ages), ages

    @pytest.mark.parametrize("asked", [{}, {"name": "fastest"}, {"name": "workflow", "parameters": {"margin_s": "x"}}])
    def test_a_router_that_is_none_is_refused(self, server: Server, asked: dict[str, Any]) -> None:
        assert server.http.post("/v1/router", json=asked).status_code == 400

    def test_untagged_calls_of_one_agent_share_an_engine(self, server: Server) -> None:
        anchor = {"role": "system", "content": "You are the agent that all of these calls belong to."}
        replies = [server.chat(messages=[anchor, {"role": "user", "content": f"question {i}"}]) for i in range(3)]
        assert len({reply.headers["x-engine-id"] for reply in replies}) == 1
        assert len({reply.headers["x-agent-name"] for reply in replies}) == 1
        assert len({reply.headers["x-workflow-id"] for reply in replies}) == 3


class TestAnswers:
    def test_a_stream_says_what_a_plain_answer_says(self, client: openai.OpenAI) -> None:
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Speak"}], "max_tokens": 24}
        plain = client.chat.completions.create(**asked, temperature=0)
        stream = client.chat.completions.create(**asked, temperature=0, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == plain.choices[0].message.content

    def test_the_second_call_of_a_conversation_reports_cached_tokens(self, client: openai.OpenAI) -> None:
        asked = "A question that is long enough to be worth keeping in a cache, asked once."
        turns: list[Any] = [{"role": "user", "content": asked}]
        first = client.chat.completions.create(model=MODEL, messages=turns, max_tokens=8, temperature=0)
        turns += [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And again"},
        ]
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=turns, max_tokens=8)
        details: Any = raw.parse().usage.prompt_tokens_details  # type: ignore[union-attr]
        assert details.cached_tokens >= first.usage.prompt_tokens - 1  # type: ignore[union-attr]
        assert details.device + details.host == details.cached_tokens

    def test_replies_say_who_asked_whom(self, server: Server) -> None:
        reply = server.chat(headers={"x-workflow-id": "named", "x-agent-name": "planner", "x-request-id": "mine"})
        assert reply.headers["x-workflow-id"] == "named"
        assert reply.headers["x-agent-name"] == "planner"
        assert reply.headers["x-request-id"] == "mine"
        assert reply.headers["x-engine-id"] in {engine["id"] for engine in server.engines()}

    def test_the_model_is_listed(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


class TestWorkflows:
    def test_a_workflow_lives_ends_and_comes_back(self, server: Server) -> None:
        def state(name: str) -> str:
            return str(server.http.get(f"/v1/workflows/{name}").json()["state"])

        server.chat(headers={"x-workflow-id": "life", "x-agent-name": "planner"})
        assert state("life") == "idle"
        assert server.http.delete("/v1/workflows/life").json()["state"] == "ended"
        assert server.http.delete("/v1/workflows/life").json()["end_reason"] == "requested"
        server.chat(headers={"x-workflow-id": "life", "x-agent-name": "coder"})
        assert state("life") == "idle"
        server.chat(headers={"x-workflow-id": "life", "x-workflow-final": "true"})
        ended = server.http.get("/v1/workflows/life").json()
        assert (ended["state"], ended["end_reason"], ended["calls"]) == ("ended", "final", 3)
        assert ended["agents"] == {"planner": 1, "coder": 1, "default": 1}

    def test_an_idle_workflow_ends_by_itself(self, server: Server) -> None:
        server.chat(headers={"x-workflow-id": "forgotten"})
        found = eventually(
            lambda: [w for w in server.http.get("/v1/workflows?state=ended").json()["data"] if w["id"] == "forgotten"],
            "the workflow ends",
            limit_s=30,
        )
        assert found[0]["end_reason"] == "idle_timeout"

    def test_the_client_helper_names_and_ends_its_workflow(self, server: Server, client: openai.OpenAI) -> None:
        with workflow() as flow, agent("writer"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=2)
            assert server.http.get(f"/v1/workflows/{flow.id}").json()["agents"] == {"writer": 1}
        assert server.http.get(f"/v1/workflows/{flow.id}").json()["end_reason"] == "requested"


class TestLeaving:
    @pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
    def test_a_client_that_goes_away_frees_the_engine(self, server: Server, stream: bool) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "go on for ever"}],
            "max_tokens": 3500,
            "ignore_eos": True,
            "stream": stream,
        }

        async def leave() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
                call = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
                running = asyncio.to_thread(eventually, lambda: busy(server), "the call runs", 30)
                await asyncio.wait_for(running, 40)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

        asyncio.run(leave())
        eventually(lambda: not busy(server), "the engine is free again", 15)
        assert "never retrieved" not in server.log()


def busy(server: Server) -> bool:
    return any(engine["running"] or engine["calls"] for engine in server.engines())


RECENT_CALLS = """
import dataclasses, json, sys, time, ray
from ray import serve
from serving.calls import EngineQuery
ray.init(address="auto", namespace="serve", log_to_driver=False)
handle = serve.get_deployment_handle("EngineReplica", "forecache")
calls = {}
until = time.monotonic() + 30
while sys.argv[2] not in calls and time.monotonic() < until:
    recent = handle.recent_calls.remote(EngineQuery(sys.argv[1])).result(timeout_s=30)
    calls = {call.rid: dataclasses.asdict(call) for call in recent}
print("CALL", json.dumps(calls[sys.argv[2]]))
"""


class TestIdentity:
    def test_identity_arrives_in_the_scheduler_as_sent(self, server: Server) -> None:
        headers = {
            "x-workflow-id": "Zürich 42".encode(),
            "x-agent-name": "plänner".encode(),
            "x-parent-workflow-id": b"root/1",
            "x-workflow-final": b"true",
            "x-workflow-priority": b"-3",
            "x-tenant-id": b"acme",
        }
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        reply = httpx.post(
            f"{server.url}/v1/chat/completions", json=body | {"kv_hints": {"forged": 1}}, headers=headers, timeout=60
        )
        assert reply.status_code == 200
        said = run_tool(sys.executable, "-c", RECENT_CALLS, reply.headers["x-engine-id"], reply.json()["id"])
        seen = json.loads(said.partition("CALL ")[2])
        assert seen["identity"] == {
            "workflow": "Zürich 42",
            "agent": "plänner",
            "parent": "root/1",
            "final": True,
            "priority": -3,
            "tenant": "acme",
            "source": "header",
        }


class TestCache:
    def test_the_end_of_a_workflow_reaches_its_engine(self, server: Server) -> None:
        reply = server.chat("A text of its own, to be retired soon. " * 5, {"x-workflow-id": "short-lived"})
        engine = reply.headers["x-engine-id"]

        def states() -> list[str]:
            nodes = server.http.get(f"/v1/engines/{engine}/cache").json()["nodes"]
            return [node["state"] for node in nodes if "short-lived" in node["owners"]]

        assert states()
        server.http.delete("/v1/workflows/short-lived")
        eventually(lambda: not states(), "the workflow owns nothing any more", 10)

    def test_a_person_can_look_and_the_books_are_right(self, server: Server) -> None:
        server.chat("Something to look at", {"x-workflow-id": "looked-at", "x-agent-name": "viewer"})
        forecache = Path(sys.executable).with_name("forecache")
        url = ("--base-url", f"{server.url}/v1")
        assert "looked-at: viewer" in run_tool(forecache, "engine", "dump", *url)
        assert run_tool(forecache, "engine", "check", *url).count("consistent") == 2
        cache = server.engines()[0]["cache"]
        assert cache["policy"] == "reuse"
        assert cache["counters"]["computed"] > 0

    def test_bad_questions_are_errors(self, server: Server) -> None:
        engine = server.engines()[0]["id"]
        assert server.http.get("/v1/engines/nobody/cache").status_code == 404
        assert server.http.get(f"/v1/engines/{engine}/cache?what=everything").json()["error"]["param"] == "what"


class TestLimits:
    def test_too_many_calls_at_once_get_a_429_and_the_rest_an_answer(self, server: Server) -> None:
        async def flood() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                body = {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "x"}],
                    "max_tokens": 60,
                    "ignore_eos": True,
                }
                return await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(160)))

        replies = asyncio.run(flood())
        refused = [reply for reply in replies if reply.status_code == 429]
        assert {reply.status_code for reply in replies} == {200, 429}
        assert len(replies) - len(refused) >= 64
        assert all(int(reply.headers["retry-after"]) > 0 for reply in refused)
        assert refused[0].json()["error"]["type"] == "rate_limit_error"

    def test_a_body_too_large_gets_a_413(self, server: Server) -> None:
        reply = server.chat("x" * 300_000)
        assert reply.status_code == 413
        assert "200000" in reply.json()["error"]["message"]


def test_engines_have_no_semaphore_that_would_stay_if_they_were_killed(server: Server) -> None:
    pids = [pid for engine in server.engines() for pid in engine["pids"]]
    assert pids
    for pid in pids:
        assert "/dev/shm/sem." not in Path(f"/proc/{pid}/maps").read_text()


def test_answers_come_at_once_after_all_that(server: Server) -> None:
    started = time.monotonic()
    assert server.chat().status_code == 200
    assert time.monotonic() - started < 10
