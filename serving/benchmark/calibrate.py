"""`forecache bench calibrate`: what the steps of a running engine cost, measured from outside, for the replay.

Prompts are random token ids that nobody has sent before, so what is cached is known. The engine must be idle otherwise.
Plans go to it as the driver of `bench run` sends them, from this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from scipy.optimize import nnls

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark.driver.call import body_of, make_call
from serving.benchmark.driver.engines import EnginesError, RunningEndpoint, Target
from serving.benchmark.replay.costs import Costs

PROMPTS = (16, 128, 512, 1024, 2048)
CONTEXTS = (0, 2048, 6144)
NEW_TOKENS = (32, 512)
BATCHES = (1, 2, 4, 8)
BATCH_CONTEXTS = (32, 2048)
DECODE_TOKENS = 24
# Plans come while so many calls generate so much; oftener than they would, so that their cost stands out.
PLAN_CALLS = 4
PLAN_DECODE_TOKENS = 256
PLAN_PERIOD_S = 0.02
PLAN_LIFE_S = 60.0
PLANS_AHEAD = 10_000
LINK_TOKENS = 4096
# Where no host tier is, loads do not occur; any large number will do.
NO_LINK_TOKENS_PER_S = 1e9
CALL_LIMIT_S = 300.0

Progress = Callable[[str], None]
Send = Callable[[EnginePlan], Awaitable[EngineReport]]


class CalibrateError(RuntimeError):
    """The endpoint does not answer, or not as it must for a calibration."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: seconds to its first token and to its end, and the tokens of it that were cached."""

    first_s: float
    total_s: float
    device: int
    host: int


class Calibration:
    """Measures through the OpenAI endpoint.

    Args:
        send: brings a plan to the engine.
        vocabulary: token ids are drawn from this range.
        rounds: every figure is the median of so many.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        send: Send,
        model: str,
        vocabulary: range,
        rounds: int,
        progress: Progress,
    ) -> None:
        self._http = http
        self._send = send
        self._model = model
        self._vocabulary = vocabulary
        self._rounds = rounds
        self._progress = progress
        self._random = random.Random(time.time_ns())
        # An engine refuses a plan that is not newer than the last; these are, after a restart of ours, too, and than
        # one of a coordinator that is still on its way.
        self._plan_numbers = itertools.count(time.time_ns() // 1_000_000 + PLANS_AHEAD)

    async def run(self, name: str, source: str) -> Costs:
        """All of it, in some minutes.

        Raises:
            CalibrateError: a call failed, or a plan was refused.
        """
        await self._call(self._prompt(16), 8)
        call_and_prefill, token, pair, prefix_pair = await self._prefills()
        step, each, context = await self._decodes()
        plan = await self._plans()
        link = await self._link()
        # A prefill's fixed part cannot be told from the call's; it is taken to be a decode step's.
        return Costs(
            name=name,
            prefill_s=min(step, call_and_prefill),
            prefill_token_s=token,
            prefill_pair_s=pair,
            prefill_prefix_pair_s=prefix_pair,
            decode_s=step,
            decode_call_s=each,
            decode_context_s=context,
            link_tokens_per_s=link,
            call_s=max(0.0, call_and_prefill - step),
            plan_s=plan,
            source=source,
        )

    async def _prefills(self) -> list[float]:
        rows: list[list[float]] = []
        seconds: list[float] = []
        plan = [(0, new) for new in PROMPTS] + [(before, new) for before in CONTEXTS[1:] for new in NEW_TOKENS]
        for before, new in plan:
            self._progress(f"prefill of {new} tokens after {before}")
            times = []
            for _ in range(self._rounds):
                known = self._prompt(before)
                if before:
                    await self._call(known, 1)
                times.append((await self._call(known + self._prompt(new), 1)).first_s)
            rows.append([1.0, new, new * (before + new / 2), before * before / 2])
            seconds.append(statistics.median(times))
        return _fit(rows, seconds)

    async def _decodes(self) -> list[float]:
        rows: list[list[float]] = []
        seconds: list[float] = []
        for context in BATCH_CONTEXTS:
            for calls in BATCHES:
                self._progress(f"decode of {calls} calls after {context} tokens")
                steps = []
                for _ in range(self._rounds):
                    prompts = [self._prompt(context) for _ in range(calls)]
                    await asyncio.gather(*(self._call(prompt, 1) for prompt in prompts))
                    samples = await asyncio.gather(*(self._call(prompt, DECODE_TOKENS) for prompt in prompts))
                    steps += [(one.total_s - one.first_s) / (DECODE_TOKENS - 1) for one in samples]
                rows.append([1.0, calls, calls * (context + DECODE_TOKENS / 2)])
                seconds.append(statistics.median(steps))
        return _fit(rows, seconds)

    async def _plans(self) -> float:
        """Seconds that calls which generate are held up by a plan."""
        lost = []
        for number in range(self._rounds):
            self._progress(f"plans: {number + 1} of {self._rounds}")
            plain, _ = await self._generate(f"calibrate-{number}-plain", plans=False)
            with_plans, plans = await self._generate(f"calibrate-{number}-plans", plans=True)
            lost.append((with_plans - plain) / plans)
        return max(0.0, statistics.median(lost))

    async def _generate(self, workflow: str, plans: bool) -> tuple[float, int]:
        """Seconds in which calls of a workflow generate at once, and the plans about it that the engine had."""
        headers = {"x-workflow-id": workflow, "x-agent-name": "generator"}
        sent: list[int] = []
        telling = asyncio.create_task(self._tell(workflow, sent)) if plans else None
        start = time.monotonic()
        try:
            prompts = [self._prompt(BATCH_CONTEXTS[0]) for _ in range(PLAN_CALLS)]
            await asyncio.gather(*(self._call(prompt, PLAN_DECODE_TOKENS, headers) for prompt in prompts))
            seconds = time.monotonic() - start
        finally:
            if telling is not None:
                telling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await telling
        if plans and not sent:
            raise CalibrateError("no plan was answered while calls ran: is the engine idle otherwise?")
        return seconds, len(sent)

    async def _tell(self, workflow: str, sent: list[int]) -> None:
        """Sends plans about a workflow until it is cancelled; adds the number of each that was applied to `sent`."""
        for number in self._plan_numbers:
            table = {"generator": number % 2, "reader": 1 + number % 3}  # another each time, so that there is work
            report = await self._send(EnginePlan(number, PLAN_LIFE_S, [], {workflow: table}, []))
            if not report.accepted:
                raise CalibrateError(
                    f"the engine refuses plans: {report.reason}; measure one with cache.backend forecache"
                )
            sent.append(number)
            await asyncio.sleep(PLAN_PERIOD_S)

    async def _link(self) -> float:
        """Tokens a second from the host: how much longer a call takes whose prefix is there than one on the device."""
        pools = (await self._get("/engines"))["data"][0]["cache"]
        if pools is None or "host_size" not in pools["pools"]:
            return NO_LINK_TOKENS_PER_S
        pool = sum(pools["pools"][name] for name in ("free", "evictable", "locked"))
        tokens = min(LINK_TOKENS, pool // 4)
        rates = []
        for number in range(self._rounds):
            self._progress(f"loads from the host: {number + 1} of {self._rounds}")
            known = self._prompt(tokens)
            await self._call(known, 1)
            there = await self._call(known + self._prompt(16), 1)
            for _ in range(pool // tokens + 1):
                await self._call(self._prompt(tokens), 1)
            back = await self._call(known + self._prompt(16), 1)
            if back.host:
                rates.append(back.host / max(back.first_s - there.first_s, 1e-4))
        if not rates:
            raise CalibrateError("nothing came back from the host tier: is it as large as the device's?")
        return statistics.median(rates)

    def _prompt(self, tokens: int) -> list[int]:
        return self._random.choices(self._vocabulary, k=tokens)

    async def _get(self, path: str) -> Any:
        return (await self._http.get(path)).raise_for_status().json()

    async def _call(self, prompt: list[int], tokens: int, headers: dict[str, str] | None = None) -> Sample:
        body = body_of(self._model, prompt, tokens, None)
        answer = await make_call(self._http, body, headers or {}, lambda engine: None, CALL_LIMIT_S)
        if answer.error is not None or answer.first_token_s is None:
            raise CalibrateError(f"a call of {len(prompt)} tokens failed: {answer.error or 'no token came'}")
        first, total = answer.first_token_s - answer.sent_s, answer.end_s - answer.sent_s
        return Sample(first, total, answer.hit_device, answer.hit_host)


def _fit(rows: list[list[float]], seconds: list[float]) -> list[float]:
    """Least squares with no negative part, each measurement weighed by its size so that short ones count, too."""
    weights = 1 / np.array(seconds)
    found, _ = nnls(np.array(rows) * weights[:, None], np.array(seconds) * weights)
    return [float(each) for each in found]


def calibrate(base_url: str, name: str, vocabulary: range, rounds: int, progress: Progress) -> Costs:
    """Measures the first engine behind an endpoint on the Ray cluster of this machine.

    Raises:
        CalibrateError: there is no endpoint, its cluster is not this machine's, or a call failed.
    """

    async def measure(target: Target) -> Costs:
        async with httpx.AsyncClient(base_url=target.url, timeout=CALL_LIMIT_S) as http:
            engine = (await target.engines(http))[0]["id"]
            source = f"measured with forecache bench calibrate on {target.model}"

            def send(plan: EnginePlan) -> Awaitable[EngineReport]:
                return target.send(engine, plan)

            async with target.without_coordinator(http):
                return await Calibration(http, send, target.model, vocabulary, rounds, progress).run(name, source)

    try:
        with RunningEndpoint(base_url) as endpoint:
            return asyncio.run(measure(endpoint.target()))
    except EnginesError as error:
        raise CalibrateError(str(error)) from error
    except httpx.HTTPError as error:
        raise CalibrateError(f"{base_url} failed: {error!r}; start a server with `serve run`") from error
