"""Calibration against an endpoint whose costs are known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark import calibrate as module
from serving.benchmark.calibrate import CalibrateError, Calibration, calibrate
from serving.benchmark.driver import call
from serving.benchmark.replay.costs import Costs

TRUE = Costs(
    name="true",
    prefill_s=0.004,
    prefill_token_s=5e-5,
    prefill_pair_s=2e-9,
    prefill_prefix_pair_s=1e-9,
    decode_s=0.004,
    decode_call_s=0.001,
    decode_context_s=1e-7,
    link_tokens_per_s=200_000.0,
    call_s=0.02,
    plan_s=0.005,
    source="made up",
)
POOL = 8192


class Endpoint(httpx.AsyncBaseTransport):
    """Answers with the delays of `TRUE`, in a hundredth of the time that its clock says; remembers what it was sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.known: list[tuple[int, ...]] = []
        self.running = 0
        self.refuses: str | None = None

    async def send(self, plan: EnginePlan) -> EngineReport:
        await asyncio.sleep(0)
        self.now += TRUE.plan_s
        return EngineReport(plan.plan, self.refuses is None, self.refuses or "", [], {}, {}, {}, [], 0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path.endswith("/engines"):
            pools = {"free": POOL, "evictable": 0, "locked": 0, "host_size": 10 * POOL}
            return httpx.Response(200, json={"data": [{"cache": {"pools": pools}}]})
        body = json.loads(request.content)
        return httpx.Response(200, stream=Stream(self, tuple(body["prompt"]), body["max_tokens"]))


class Stream(httpx.AsyncByteStream):
    def __init__(self, endpoint: Endpoint, prompt: tuple[int, ...], tokens: int) -> None:
        self._endpoint, self._prompt, self._tokens = endpoint, prompt, tokens

    async def __aiter__(self) -> AsyncIterator[bytes]:
        endpoint, prompt = self._endpoint, self._prompt
        endpoint.running += 1
        await asyncio.sleep(0)
        calls = endpoint.running
        hit = max((len(one) for one in endpoint.known if prompt[: len(one)] == one), default=0)
        hit = min(hit, len(prompt) - 1)
        behind = sum(len(one) for one in endpoint.known[::-1][: self._place(hit)]) if hit else 0
        host = hit if behind > POOL else 0
        first = TRUE.call_s + TRUE.prefill([(len(prompt) - hit, hit)]) + host / TRUE.link_tokens_per_s
        endpoint.known.append(prompt)
        endpoint.now += first / calls
        await asyncio.sleep(0)
        yield b'data: {"choices": [{"text": "x"}]}\n\n'
        steps = (self._tokens - 1) * TRUE.decode(calls, calls * (len(prompt) + self._tokens // 2))
        for _ in range(2):
            await asyncio.sleep(0)
        endpoint.now += steps / calls
        await asyncio.sleep(0)
        endpoint.running -= 1
        details = {"device": hit - host, "host": host}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": self._tokens, "prompt_tokens_details": details}
        yield b"data: " + json.dumps({"usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"

    def _place(self, hit: int) -> int:
        """How many prompts ago the prefix was used."""
        for ago, one in enumerate(self._endpoint.known[::-1], start=1):
            if one[:hit] == self._prompt[:hit]:
                return ago
        return 0


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    endpoint = Endpoint()
    clock = SimpleNamespace(monotonic=lambda: endpoint.now, time_ns=time.time_ns)
    monkeypatch.setattr(call, "time", clock)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "BATCHES", (1,))
    monkeypatch.setattr(module, "PLAN_CALLS", 1)
    monkeypatch.setattr(module, "PLAN_PERIOD_S", 0)
    return endpoint


async def measured(endpoint: Endpoint) -> Costs:
    async with httpx.AsyncClient(transport=endpoint, base_url="http://engine/v1") as http:
        measuring = Calibration(http, endpoint.send, "m", range(10, 1_000_000), 1, lambda what: None)
        return await measuring.run("mine", "a test")


class TestCalibration:
    async def test_it_finds_the_costs_of_a_single_call(self, endpoint: Endpoint) -> None:
        found = await measured(endpoint)
        assert found.prefill_token_s == pytest.approx(TRUE.prefill_token_s, rel=0.02)
        assert found.prefill_pair_s == pytest.approx(TRUE.prefill_pair_s, rel=0.1)
        assert found.prefill_prefix_pair_s == pytest.approx(TRUE.prefill_prefix_pair_s, rel=0.1)
        assert found.call_s + found.prefill_s == pytest.approx(TRUE.call_s + TRUE.prefill_s, rel=0.05)
        assert found.decode(1, 1000) == pytest.approx(TRUE.decode(1, 1000), rel=0.02)
        assert found.link_tokens_per_s == pytest.approx(TRUE.link_tokens_per_s, rel=0.05)

    async def test_it_finds_what_a_plan_costs(self, endpoint: Endpoint) -> None:
        assert (await measured(endpoint)).plan_s == pytest.approx(TRUE.plan_s, rel=0.05)

    async def test_an_engine_that_refuses_plans_cannot_be_measured(self, endpoint: Endpoint) -> None:
        endpoint.refuses = "this engine runs SGLang's own cache"
        with pytest.raises(CalibrateError, match=r"SGLang's own cache.*cache\.backend"):
            await measured(endpoint)

    def test_without_a_server_it_says_what_to_do(self) -> None:
        with pytest.raises(CalibrateError, match="serve run"):
            calibrate("http://127.0.0.1:9/v1", "x", range(10, 20), 1, lambda what: None)
