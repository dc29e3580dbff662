"""One round: an emptied cache, one policy, one workload played to its end, all of it recorded."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from cache_actor.messages import EnginePlan
from serving.benchmark.contestants import Contestant
from serving.benchmark.driver.call import Answer
from serving.benchmark.driver.engines import EnginesError, Target
from serving.benchmark.driver.load import Load, LoadOptions
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.driver.planner import Planner
from serving.benchmark.driver.points import Turn
from serving.benchmark.driver.suite import Suite
from serving.benchmark.driver.telemetry import complete, counts_nothing, difference, gate_sample_of, sample_of
from serving.benchmark.forecasts import Source, source_of
from serving.benchmark.records import CallRecord, RoundRecord
from serving.benchmark.workloads import Lanes, Tokens, Workflow

SAMPLE_PERIOD_S = 0.5
SETTLE_LIMIT_S = 120.0  # an engine that was lost is back by then
SETTLE_PERIOD_S = 0.1
WARM_UP_SEED = 2
# Rising over restarts of the driver, for an engine refuses a plan that is not newer than the last.
_PLAN_NUMBERS = itertools.count(time.time_ns() // 1_000_000)


@dataclass(slots=True)
class RoundOutcome:
    """What a round brought. `lost` says why it must not count, if so; `plans` counts plans by what became of them."""

    record: RoundRecord
    calls: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    plans: Counter[str] = field(default_factory=Counter)
    lost: str | None = None


class RoundPlayer:
    """Plays one turn of a suite on a target.

    Args:
        suffix: makes the workflows' ids unique to this round.
        on_call: told of each call as it ends.
        clock_start: the records' times are seconds since then, on the monotonic clock.
    """

    def __init__(
        self,
        suite: Suite,
        turn: Turn,
        target: Target,
        suffix: str,
        on_call: Callable[[CallRecord], object],
        clock_start: float,
    ) -> None:
        self._suite = suite
        self._turn = turn
        self._target = target
        self._suffix = suffix
        self._on_call = on_call
        self._zero = clock_start
        self._timeline: list[dict[str, float]] = []
        first, end = suite.token_range()
        self._tokens = Tokens(end, first)
        self._outcome = RoundOutcome(RoundRecord(turn.point.spec.key, turn.contestant.name, turn.round, 0.0))

    async def play(self) -> RoundOutcome:
        """The round, after a warm-up if these engines have had none.

        Raises:
            EnginesError: the engines cannot be reached, switched or emptied.
            EndpointSilentError: see `Load.play`.
        """
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(base_url=self._target.url, limits=limits, timeout=None) as self._http:
            if not self._target.warm:
                await self._warm_up(self._http)
            self._engines = [engine["id"] for engine in await self._target.engines(self._http)]
            await self._prepare(self._engines)
            return await self._measured(self._http, self._engines)

    async def _warm_up(self, http: httpx.AsyncClient) -> None:
        suite = self._suite
        if suite.warm_up_workflows:
            seed = suite.teaching_seed() + WARM_UP_SEED
            workload = self._turn.point.workload.make(seed).limited(suite.warm_up_workflows)
            async with self._planner([], self._turn.contestant, None) as planner:
                load = Load(http, self._tokens, planner, self._options("warm"), lambda workflow, index, answer: None)
                await load.play(workload, Lanes(suite.warm_up_workflows))
        self._target.warm = True

    async def _prepare(self, engines: list[str]) -> None:
        """This round's policy on an empty cache that nobody uses."""
        who = self._turn.contestant
        if not engines:
            raise EnginesError(f"no engine is running behind {self._target.url}")
        for engine in engines:
            if who.backend == "forecache":
                plan = EnginePlan(
                    next(_PLAN_NUMBERS), 60.0, [], {}, [], who.policy, dict(who.parameters), prefetch=who.prefetch
                )
                report = await self._target.switch(engine, plan)
                if not report.accepted:
                    raise EnginesError(f"engine {engine} refuses the policy of {who.name!r}: {report.reason}")
            await self._target.flush(engine)
        if who.router:
            await self._target.route_by(self._http, who.router, who.router_parameters)
        if who.admission != "off":
            await self._target.find_limits_anew(self._http)

    async def _measured(self, http: httpx.AsyncClient, engines: list[str]) -> RoundOutcome:
        suite, turn, outcome = self._suite, self._turn, self._outcome
        seed = suite.round_seed(turn.round)
        workload = turn.point.workload.make(seed)
        source = None if turn.contestant.coordinator else source_of(turn.contestant, workload, seed)
        if source is not None:
            source.teach(turn.point.workload.make(suite.teaching_seed()))
        before = await self._settled(http)
        self._sample_pool = [(engine.get("cache") or {}).get("pools", {}).get("free", 0) for engine in before]
        start = time.monotonic()
        async with self._planner(engines, turn.contestant, source) as planner:
            sampling = asyncio.create_task(self._sample(http, start))
            try:
                load = Load(http, self._tokens, planner, self._options(self._suffix), self._record, self._over)
                await load.play(workload, turn.point.arrivals.arrivals(seed), turn.point.arrivals.time_scale)
            finally:
                sampling.cancel()
            seconds = time.monotonic() - start
        outcome.plans, outcome.errors = planner.counts, [*outcome.errors, *planner.errors]
        after = await self._settled(http)
        if [engine["id"] for engine in after] != [engine["id"] for engine in before]:
            outcome.lost = "an engine was replaced, and with it the policy and the counters"
        counters = difference(before, after)
        policy_ns = counters.pop("policy_ns", None)
        outcome.record = RoundRecord(
            turn.point.spec.key,
            turn.contestant.name,
            turn.round,
            seconds,
            counters,
            None if policy_ns is None else policy_ns / 1e9,
            self._timeline,
            engines,
        )
        return outcome

    def _planner(self, engines: list[str], who: Contestant, source: Source | None) -> Planner:
        desk = PlanDesk(_PLAN_NUMBERS, prefetch=who.prefetch != "off")
        return Planner(source, desk, engines, self._target.send)

    def _options(self, suffix: str) -> LoadOptions:
        limits = self._suite.limits
        sessions = self._turn.contestant.session_refs
        return LoadOptions(self._target.model, suffix, sessions, limits.call_timeout_s, limits.silence_s)

    def _record(self, workflow: Workflow, index: int, answer: Answer) -> None:
        turn, call = self._turn, workflow.calls[index]
        self._outcome.calls += 1
        if answer.error is not None:
            self._outcome.failed += 1
            self._outcome.errors.append(answer.error)
        first = None if answer.first_token_s is None else answer.first_token_s - self._zero
        self._on_call(
            CallRecord(
                turn.point.spec.key,
                turn.contestant.name,
                turn.round,
                workflow.id,
                index,
                call.agent,
                answer.sent_s - self._zero,
                first,
                answer.end_s - self._zero,
                answer.prompt_tokens,
                answer.hit_device,
                answer.hit_host,
                answer.output_tokens,
                call.pause_s if index + 1 < len(workflow.calls) else 0.0,
                answer.error,
                answer.engine or "",
                answer.route,
            )
        )

    async def _over(self, name: str, whole: bool) -> None:
        """Tells the engines of an end that no call's headers have told."""
        try:
            if self._turn.contestant.session_refs:
                for engine in self._engines:
                    await self._target.close_sessions(engine, [name])
            if not whole:
                await self._http.delete(f"workflows/{name}")
        except Exception as error:  # an engine that is gone has nothing to end
            self._outcome.errors.append(f"end of {name}: {type(error).__name__}: {error}")

    async def _settled(self, http: httpx.AsyncClient) -> list[dict[str, Any]]:
        """The engines' figures, once every engine has said them and has no call left."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while True:
            engines = await self._target.engines(http)
            if complete(engines) and not any(engine["calls"] for engine in engines):
                return sorted(engines, key=lambda engine: str(engine["id"]))
            if time.monotonic() > deadline:
                raise EnginesError(f"the engines behind {self._target.url} do not come to rest")
            await asyncio.sleep(SETTLE_PERIOD_S)

    async def _sample(self, http: httpx.AsyncClient, start: float) -> None:
        while True:
            await asyncio.sleep(SAMPLE_PERIOD_S)
            try:
                engines = sorted(await self._target.engines(http), key=lambda engine: str(engine["id"]))
            except EnginesError:
                continue  # a sample less; that the endpoint is gone is for the calls to find out
            if engines and counts_nothing(engines):
                return
            sample = sample_of(engines[0], self._sample_pool[0], time.monotonic() - start) if engines else None
            if sample is not None:
                self._timeline.append(sample | await self._gate_sample(http, str(engines[0]["id"])))

    async def _gate_sample(self, http: httpx.AsyncClient, engine: str) -> dict[str, float]:
        """Who is in and who waits, if anybody may have to."""
        if self._turn.contestant.admission == "off":
            return {}
        try:
            return gate_sample_of(await self._target.coordinator(http), engine)
        except EnginesError:
            return {}
