"""Kills parts of a running endpoint at random times under load: which requests fail, and how soon is all well again?"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import httpx
import psutil

AGENTS = ("planner", "coder", "tester", "reviewer")
# Part of the endpoint -> what the command line of its process has in it.
VICTIMS = {
    "coordinator": ":CacheCoordinator",
    "predictor": ":Predictor",
    "engine": ":EngineReplica",
    "scheduler": "sglang::scheduler",
}
ENGINES = ("engine", "scheduler")
PERIODS_S = (15.0, 40.0)
RECOVERY_LIMIT_S = 180.0
CALL_LIMIT_S = 120.0
RETRIES = 60
REFERENCES = 8
# Greedy outputs are compared over so many tokens.
TOKENS = 12

Progress = Callable[[float, str], None]


class ChaosError(RuntimeError):
    """The endpoint cannot be tested; says why and what to do."""


class Chaos:
    """Lanes of workflows over HTTP, a killer, and a watch over what comes back.

    A call that is answered with a 503 and `Retry-After` is made again: that is what a client does, and no failure. Any
    other answer than 200 is, and so is one whose greedy tokens are not those that the same prompt had before.

    Args:
        base_url: the endpoint on this machine, with `/v1`.
        lanes: workflows at once.
        seed: of everything that is random.
    """

    def __init__(self, base_url: str, lanes: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._recovery: dict[str, list[float]] = defaultdict(list)
        self._url = base_url.rstrip("/")
        self._lanes = lanes
        self._random = random.Random(seed)
        self._references: list[tuple[str, list[int]]] = []

    async def run(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """What happened.

        Raises:
            ChaosError: nobody answers at the start, or its processes are not on this machine.
        """
        async with httpx.AsyncClient(base_url=self._url, timeout=CALL_LIMIT_S) as http:
            try:
                self._model = (await http.get("/models")).json()["data"][0]["id"]
                engines = len((await http.get("/engines")).json()["data"])
            except (httpx.HTTPError, ValueError, LookupError) as error:
                remedy = "start one: serve run configs/two_engines.yaml"
                raise ChaosError(f"{self._url} does not answer ({error}); {remedy}") from error
            for name, mark in VICTIMS.items():
                if not _processes(mark):
                    raise ChaosError(f"no process of the {name} is on this machine: is the endpoint elsewhere?")
            self._references = [await self._reference(http, number) for number in range(REFERENCES)]
            until = time.monotonic() + seconds
            lanes = [asyncio.create_task(self._lane(http, lane, until)) for lane in range(self._lanes)]
            killer = asyncio.create_task(self._kill(http, engines, until, seconds, progress))
            await asyncio.gather(*lanes, killer)
        return {
            "seconds": seconds,
            "counts": dict(self.counts),
            "errors": self.errors[:20],
            "failed": self.counts["failed"] + self.counts["tokens_differ"] + self.counts["not_recovered"],
            "recovery_s": {
                name: {"median": statistics.median(times), "max": max(times), "times": len(times)}
                for name, times in self._recovery.items()
            },
        }

    async def _lane(self, http: httpx.AsyncClient, lane: int, until: float) -> None:
        for number in itertools.count():
            if time.monotonic() >= until:
                return
            workflow, context = f"chaos-{lane}-{number}", _text(self._random, 60)
            for step in range(length := self._random.randrange(2, 7)):
                context += _text(self._random, self._random.randrange(10, 60))
                agent = AGENTS[step % len(AGENTS)]
                final = "true" if step + 1 == length else "false"
                headers = {"x-workflow-id": workflow, "x-agent-name": agent, "x-workflow-final": final}
                await self._call(http, _prompt(agent, context), headers)
            prompt, tokens = self._random.choice(self._references)
            answered = await self._call(http, prompt, {"x-workflow-id": f"{workflow}-same", "x-workflow-final": "true"})
            if answered is not None and answered != tokens:
                self.counts["tokens_differ"] += 1
                self.errors.append(f"another answer to the same prompt: {answered} was {tokens}")

    async def _call(self, http: httpx.AsyncClient, prompt: str, headers: dict[str, str]) -> list[int] | None:
        """The tokens of an answer; None if the call failed."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        for _ in range(RETRIES):
            try:
                reply = await http.post("/completions", json=body | {"return_token_ids": True}, headers=headers)
            except httpx.HTTPError as error:
                self.counts["failed"] += 1
                self.errors.append(repr(error))
                return None
            if reply.status_code == 200:
                self.counts["answered"] += 1
                tokens: list[int] = reply.json()["choices"][0]["token_ids"]
                return tokens
            if reply.status_code != 503 or "retry-after" not in reply.headers:
                self.counts["failed"] += 1
                self.errors.append(f"HTTP {reply.status_code}: {reply.text[:300]}")
                return None
            self.counts["retried"] += 1
            await asyncio.sleep(min(float(reply.headers["retry-after"]), 2.0))
        self.counts["failed"] += 1
        self.errors.append(f"not answered after {RETRIES} tries")
        return None

    async def _reference(self, http: httpx.AsyncClient, number: int) -> tuple[str, list[int]]:
        prompt = _prompt("judge", _text(random.Random(number), 150))
        headers = {"x-workflow-id": f"chaos-reference-{number}", "x-workflow-final": "true"}
        tokens = await self._call(http, prompt, headers)
        if tokens is None:
            raise ChaosError(f"the endpoint does not answer before anything was killed: {self.errors}")
        return prompt, tokens

    async def _kill(
        self, http: httpx.AsyncClient, engines: int, until: float, seconds: float, progress: Progress
    ) -> None:
        names = list(VICTIMS)
        for number in itertools.count():
            pause = self._random.uniform(*PERIODS_S)
            if time.monotonic() + pause >= until:
                await _until(until, until, seconds, progress, "the last calls")
                return
            await _until(time.monotonic() + pause, until, seconds, progress, "load")
            name = names[number % len(names)]
            process = self._random.choice(_processes(VICTIMS[name]))
            before = await _plans(http) or {}
            os.kill(process.pid, signal.SIGKILL)
            self.counts[f"killed_{name}"] += 1
            killed = time.monotonic()
            progress(_share(until, seconds), f"killed a {name}")
            lost = set(before) if name in ENGINES else set()
            if await self._recovered(http, engines, lost, process, killed):
                self._recovery[name].append(time.monotonic() - killed)
            else:
                self.counts["not_recovered"] += 1
                self.errors.append(f"not well within {RECOVERY_LIMIT_S:g} s after a {name} was killed")

    async def _recovered(
        self, http: httpx.AsyncClient, engines: int, lost: set[str], killed: psutil.Process, since: float
    ) -> bool:
        """Whether so many engines, not all of them those that were there when one was `lost`, report to a coordinator
        that forecasts and plans, within the limit."""
        before: dict[str, int] | None = None
        while time.monotonic() < since + RECOVERY_LIMIT_S:
            await asyncio.sleep(0.2)
            if killed.is_running() and killed.status() != psutil.STATUS_ZOMBIE:
                continue
            now = await _plans(http)
            if now is None or len(now) != engines or now.keys() == lost:
                before = None
            elif before is None or before.keys() != now.keys():
                before = now
            elif any(now[engine] > before[engine] for engine in now):
                return True
        return False


async def _plans(http: httpx.AsyncClient) -> dict[str, int] | None:
    """The latest plan of each engine that was heard just now; None if the coordinator or its predictor is not well."""
    try:
        status = (await http.get("/coordinator", timeout=5)).json()
        if "error" in (status["predictor"] or {}):
            return None
        return {one["id"]: one["plan"] for one in status["engines"] if one["heard_s_ago"] < 3 and one["plan"]}
    except (httpx.HTTPError, ValueError, LookupError):
        return None


async def _until(moment: float, end: float, seconds: float, progress: Progress, what: str) -> None:
    while (left := moment - time.monotonic()) > 0:
        progress(_share(end, seconds), what)
        await asyncio.sleep(min(1.0, left))


def _share(until: float, seconds: float) -> float:
    return min(1.0, max(0.0, 1 - (until - time.monotonic()) / seconds))


def _processes(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [one for one in found if one.pid != os.getpid()]


def _prompt(agent: str, context: str) -> str:
    return f"You are the {agent}. " + "Be brief and right. " * 20 + context


def _text(rng: random.Random, words: int) -> str:
    return " ".join(f"word{rng.randrange(3000)}" for _ in range(words)) + " "
