"""Random load and random plans on running engines for a while: does anything break, leak, or get out of step?"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from cache_actor.messages import EnginePlan, EngineReport, PrefetchOrder, decode, encode
from cache_actor.policies import VALUE_ONE
from serving.calls import EngineQuery

AGENTS = ("planner", "coder", "tester", "reviewer")
POLICIES = ("lifecycle", "lookahead", "reuse", "reuse", "survival", "lru")
DEPLOYMENT, APPLICATION = "EngineReplica", "forecache"
READY_LIMIT_S = 120.0
_LOOK_S = 0.5


class SoakError(RuntimeError):
    """There is nothing to load."""


class Soak:
    """Lanes of workflows over HTTP, and a stream of plans by the engines' handles.

    Args:
        base_url: the endpoint, with `/v1`.
        lanes: workflows at once.
        plans_per_s: plans sent to each engine in a second.
        seed: of everything that is random.
    """

    def __init__(self, base_url: str, lanes: int, plans_per_s: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._url = base_url.rstrip("/")
        self._lanes = lanes
        self._plans_per_s = plans_per_s
        self._random = random.Random(seed)
        self._living: dict[str, str] = {}
        self._plan_numbers = itertools.count(time.time_ns() // 1_000_000)

    async def run(self, seconds: float, progress: Any) -> dict[str, Any]:
        """What happened, and whether the books of every engine are right at the end."""
        import ray
        from ray import serve

        try:
            ray.init(address="auto", namespace="serve", log_to_driver=False)
        except ConnectionError as error:
            raise SoakError("no Ray cluster runs on this machine; start engines with `serve run`") from error
        handle = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
        async with httpx.AsyncClient(base_url=self._url, timeout=300) as http:
            engines = await engines_of(http, READY_LIMIT_S)
            model = (await http.get("/models")).json()["data"][0]["id"]
            until = time.monotonic() + seconds
            work = [self._lane(http, model, lane, until) for lane in range(self._lanes)]
            work += [self._plans(handle, engine, until) for engine in engines]
            await asyncio.gather(*work, _watch(progress, until, seconds))
            figures = (await http.get("/engines")).json()["data"]
            checks = {
                engine["id"]: (await http.get(f"/engines/{engine['id']}/cache", params={"what": "check"})).json()
                for engine in figures
            }
        return {
            "counts": dict(self.counts),
            "errors": self.errors[:20],
            "consistent": bool(checks) and all(check.get("consistent") for check in checks.values()),
            "checks": checks,
            "engines": figures,
        }

    async def _lane(self, http: httpx.AsyncClient, model: str, lane: int, until: float) -> None:
        for number in itertools.count():
            if time.monotonic() >= until:
                return
            workflow = f"soak-{lane}-{number}"
            context = self._text(self._random.randrange(20, 200))
            for step in range(self._random.randrange(2, 8)):
                agent = self._random.choice(AGENTS)
                self._living[workflow] = agent
                context += self._text(self._random.randrange(5, 60))
                await self._call(http, model, workflow, agent, context, step)
            if self._random.random() < 0.8:
                await http.delete(f"/workflows/{workflow}")
            self._living.pop(workflow, None)

    async def _call(
        self, http: httpx.AsyncClient, model: str, workflow: str, agent: str, context: str, step: int
    ) -> None:
        messages = [
            {"role": "system", "content": f"You are the {agent}. " + "Be brief and right. " * 20},
            {"role": "user", "content": context},
        ]
        body = {"model": model, "messages": messages, "max_tokens": self._random.randrange(1, 24), "temperature": 0}
        headers = {"x-workflow-id": workflow, "x-agent-name": agent}
        leave_after = self._random.uniform(0.01, 0.2) if self._random.random() < 0.05 else None
        try:
            async with asyncio.timeout(leave_after):
                reply = await http.post("/chat/completions", json=body, headers=headers)
            self.counts[f"status_{reply.status_code}"] += 1
            if reply.status_code != 200:
                self.errors.append(reply.text[:300])
        except TimeoutError:
            self.counts["left"] += 1
        except httpx.HTTPError as error:
            self.counts["failed"] += 1
            self.errors.append(repr(error))

    async def _plans(self, handle: Any, engine: str, until: float) -> None:
        """Plans at their rate, whether or not earlier ones have been reported; one that was overtaken is refused."""
        async with asyncio.TaskGroup() as sending:
            due = time.monotonic()
            while due < until:
                sending.create_task(self._send_plan(handle, engine, self._plan()))
                due += 1 / self._plans_per_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send_plan(self, handle: Any, engine: str, plan: EnginePlan) -> None:
        try:
            report = decode(await handle.sync_plan.remote(EngineQuery(engine), encode(plan)))
            assert isinstance(report, EngineReport)
            self.counts["plans" if report.accepted else "plans_refused"] += 1
            for receipt in report.receipts:
                self.counts[f"receipts_{receipt.status}"] += 1
        except Exception as error:  # whatever it is, it is what this run looks for
            self.errors.append(f"plan: {error!r}")

    def _plan(self) -> EnginePlan:
        living = self._random.sample(list(self._living), min(4, len(self._living)))
        tables: dict[str, dict[str, int] | None] = {
            workflow: {agent: self._random.randrange(2 * VALUE_ONE) for agent in AGENTS} for workflow in living
        }
        orders = [
            PrefetchOrder(self._random.randrange(1 << 40), workflow, self._living[workflow], VALUE_ONE, 4096)
            for workflow in living[:2]
        ]
        policy = self._random.choice(POLICIES) if self._random.random() < 0.02 else None
        return EnginePlan(next(self._plan_numbers), 2.0, [], tables, orders, policy, {} if policy else None)

    def _text(self, words: int) -> str:
        return " ".join(f"word{self._random.randrange(3000)}" for _ in range(words)) + " "


async def engines_of(http: httpx.AsyncClient, limit_s: float) -> list[str]:
    """The ids of the engines that serve, once there are any.

    Raises:
        SoakError: there is none within the limit, in seconds, or nobody listens.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            known = (await http.get("/engines")).json()["data"]
        except httpx.TransportError as error:
            raise SoakError(f"{http.base_url} cannot be reached ({error}); see --base-url") from error
        found = [engine["id"] for engine in known if engine["healthy"]]
        if found:
            return found
        if time.monotonic() >= until:
            raise SoakError(f"no engine serves at {http.base_url} within {limit_s:g} s; see `serve status`")
        await asyncio.sleep(_LOOK_S)


async def _watch(progress: Any, until: float, seconds: float) -> None:
    while (left := until - time.monotonic()) > 0:
        progress(seconds - left)
        await asyncio.sleep(min(1.0, left))


def run_soak(base_url: str, seconds: float, lanes: int, plans_per_s: float, seed: int) -> dict[str, Any]:
    """A `Soak` with a progress bar on standard error; its result."""
    run = Soak(base_url, lanes, plans_per_s, seed)
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("random load", total=seconds)
        return asyncio.run(run.run(seconds, lambda done: bar.update(task, completed=done)))
