"""Calibration against an endpoint whose costs are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest

from serving.benchmark import calibrate as module
from serving.benchmark.calibrate import CalibrateError, Calibration, calibrate
from serving.benchmark.driver import call
from serving.benchmark.replay.costs import Costs

TRUE = Costs("true", 0.004, 5e-5, 2e-9, 0.004, 0.001, 1e-7, 200_000.0, 0.02, "made up")
POOL = 8192


class Endpoint(httpx.AsyncBaseTransport):
    """Answers with the delays of `TRUE`, in a hundredth of the time that its clock says; remembers what it was sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.known: list[tuple[int, ...]] = []
        self.running = 0

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


class TestCalibration:
    async def test_it_finds_the_costs_of_a_single_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        endpoint = Endpoint()
        monkeypatch.setattr(call, "time", SimpleNamespace(monotonic=lambda: endpoint.now))
        monkeypatch.setattr(module, "BATCHES", (1,))
        async with httpx.AsyncClient(transport=endpoint, base_url="http://engine/v1") as http:
            measuring = Calibration(http, "m", range(10, 1_000_000), 1, lambda what: None)
            found = await measuring.run("mine", "a test")
        assert found.prefill_token_s == pytest.approx(TRUE.prefill_token_s, rel=0.02)
        assert found.prefill_pair_s == pytest.approx(TRUE.prefill_pair_s, rel=0.1)
        assert found.call_s + found.prefill_s == pytest.approx(TRUE.call_s + TRUE.prefill_s, rel=0.05)
        assert found.decode(1, 1000) == pytest.approx(TRUE.decode(1, 1000), rel=0.02)
        assert found.link_tokens_per_s == pytest.approx(TRUE.link_tokens_per_s, rel=0.05)

    async def test_without_a_server_it_says_what_to_do(self) -> None:
        with pytest.raises(CalibrateError, match="serve run"):
            await calibrate("http://127.0.0.1:9/v1", "x", range(10, 20), 1, lambda what: None)
