"""One round's load against an endpoint that is made up: who calls whom in what order, and what an engine is told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark.driver import load as load_module
from serving.benchmark.driver.call import Answer
from serving.benchmark.driver.load import EndpointSilentError, Load, LoadOptions
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.driver.planner import Planner
from serving.benchmark.forecasts import Source, Word
from serving.benchmark.workloads import Call, Lanes, Segment, Tokens, Workflow, Workload

OUTPUT = [1001, 1002, 1003]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "PAUSE_AFTER_ERROR_S", 0.02)
    monkeypatch.setattr(load_module, "WATCH_PERIOD_S", 0.02)


def workload(workflows: int = 2) -> Workload:
    """Of each workflow the second call reads what the first one wrote."""
    return Workload(
        "made up",
        tuple(
            Workflow(
                f"w{number}",
                (
                    Call("planner", (Segment("task", 5),), 3),
                    Call("writer", (Segment("task", 5), Segment(f"plan-{number}", 3, output_of=0)), 3),
                ),
            )
            for number in range(workflows)
        ),
    )


def stream(request: httpx.Request) -> httpx.Response:
    """What an engine streams."""
    events: list[dict[str, Any]] = [
        {"choices": [{"text": "", "token_ids": OUTPUT[:1]}]},
        {"choices": [{"text": "x", "token_ids": OUTPUT[1:]}]},
        {"choices": [], "usage": {"prompt_tokens": len(body(request)["prompt"]), "completion_tokens": 3}},
    ]
    text = "".join(f"data: {orjson.dumps(event).decode()}\n\n" for event in events) + "data: [DONE]\n\n"
    return httpx.Response(200, headers={"x-engine-id": "e1", "content-type": "text/event-stream"}, text=text)


def noting(seen: list[httpx.Request]) -> Callable[[httpx.Request], httpx.Response]:
    """An endpoint that answers, and keeps what it was asked."""

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return stream(request)

    return answer


def body(request: httpx.Request) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(request.content)
    return read


async def play(
    answer: Callable[[httpx.Request], httpx.Response],
    planner: Planner | None = None,
    sessions: bool = False,
    silence_s: float = 30.0,
    load: Workload | None = None,
) -> tuple[list[Answer], list[tuple[str, bool]]]:
    answers: list[Answer] = []
    overs: list[tuple[str, bool]] = []

    async def over(name: str, whole: bool) -> None:
        overs.append((name, whole))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://made.up/v1/") as http:
        planner = planner or Planner(None, PlanDesk(itertools.count(1), False), [], sent_to([]))
        options = LoadOptions("m", "r1", sessions, 5.0, silence_s)
        player = Load(
            http, Tokens(1000, 10), planner, options, lambda workflow, index, given: answers.append(given), over
        )
        await player.play(load or workload(), Lanes(1))
    return answers, overs


def sent_to(plans: list[tuple[str, EnginePlan]], accepted: bool = True) -> Any:
    async def send(engine: str, plan: EnginePlan) -> EngineReport:
        plans.append((engine, plan))
        return EngineReport(plan.plan, accepted, "" if accepted else "too old", [], {}, {}, {}, [], 0)

    return send


class TestLoad:
    async def test_calls_name_their_workflow_and_the_last_one_ends_it(self) -> None:
        requests: list[httpx.Request] = []
        answers, overs = await play(noting(requests))
        assert [
            (each.headers["x-workflow-id"], each.headers["x-agent-name"], each.headers.get("x-workflow-final"))
            for each in requests
        ] == [
            ("w0.r1", "planner", None),
            ("w0.r1", "writer", "true"),
            ("w1.r1", "planner", None),
            ("w1.r1", "writer", "true"),
        ]
        assert overs == [("w0.r1", True), ("w1.r1", True)]
        assert [answer.prompt_tokens for answer in answers] == [5, 8, 5, 8]
        assert {answer.engine for answer in answers} == {"e1"}
        assert all(answer.first_token_s is not None and answer.error is None for answer in answers)
        assert "session_id" not in body(requests[0])

    async def test_what_a_call_wrote_is_in_the_prompt_that_reads_it(self) -> None:
        requests: list[httpx.Request] = []
        await play(noting(requests))
        assert body(requests[1])["prompt"] == body(requests[0])["prompt"] + OUTPUT

    async def test_sessions_are_named_for_sglangs_own_cache(self) -> None:
        requests: list[httpx.Request] = []
        await play(noting(requests), sessions=True)
        assert {body(each)["session_id"] for each in requests} == {"w0.r1", "w1.r1"}

    async def test_a_failed_call_is_told_and_ends_its_workflow_alone(self) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            if request.headers["x-workflow-id"] == "w0.r1":
                return httpx.Response(400, json={"error": {"message": "the prompt is too long"}})
            return stream(request)

        answers, overs = await play(refuse)
        assert [answer.error for answer in answers] == ["HTTP 400: the prompt is too long", None, None]
        assert overs == [("w0.r1", False), ("w1.r1", True)]

    async def test_a_stream_that_breaks_off_is_a_failed_call(self) -> None:
        answers, _ = await play(lambda request: httpx.Response(200, text='data: {"choices": []}\n\n'))
        assert {answer.error for answer in answers} == {"the stream broke off before its end"}

    async def test_an_endpoint_that_is_gone_stops_the_run(self) -> None:
        def gone(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("connection refused")

        with pytest.raises(EndpointSilentError, match="connection refused"):
            await play(gone, silence_s=0.1, load=workload(50))


class Told(Source):
    """Says the number of the call, and to prefetch for the writer."""

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        return Word({"writer": index + 1}, {"writer": 7})


class TestPlanner:
    async def test_plans_go_to_all_engines_until_one_has_answered_then_to_it(self) -> None:
        plans: list[tuple[str, EnginePlan]] = []
        first = workload().workflows[0]
        async with Planner(Told(), PlanDesk(itertools.count(1), True), ["e1", "e2"], sent_to(plans)) as planner:
            planner.started("w", first, 0)
            planner.started("v", first, 0)
            await asyncio.sleep(0.05)
            assert sorted((engine, len(plan.tables), len(plan.prefetches)) for engine, plan in plans) == [
                ("e1", 0, 2),
                ("e1", 2, 0),
                ("e2", 0, 2),
                ("e2", 2, 0),
            ]
            plans.clear()
            planner.on_engine("w", "e2")
            planner.ended("w", first, 0)
            await asyncio.sleep(0.05)
            ((engine, again),) = plans
            assert (engine, again.tables, len(again.prefetches)) == ("e2", {}, 1)
        assert planner.counts == {"sent": 5}

    async def test_a_plan_that_fails_or_is_refused_is_counted_and_the_next_one_sent(self) -> None:
        async def broken(engine: str, plan: EnginePlan) -> EngineReport:
            raise TimeoutError("no answer")

        first = workload().workflows[0]
        for send, kind, reason in (
            (broken, "failed", "no answer"),
            (sent_to([], accepted=False), "refused", "too old"),
        ):
            async with Planner(Told(), PlanDesk(itertools.count(1), False), ["e"], send) as planner:
                for name in ("w", "v"):
                    planner.started(name, first, 0)
                    await asyncio.sleep(0.03)
            assert planner.counts == {kind: 2}
            assert reason in planner.errors[0]
