"""A workload on modelled engines: workflows arrive, call, pause, end; every figure that a real run has, and sooner."""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from cache_actor.admission import Refused
from serving.benchmark.contestants import ROUTED_BY, Contestant
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.driver.planner import COALESCE_S
from serving.benchmark.forecasts import Word, source_of
from serving.benchmark.records import CallRecord, RecordWriter, RoundRecord
from serving.benchmark.replay.clairvoyant import ClairvoyantCache, Future, Times
from serving.benchmark.replay.door import ANYWHERE, PERIOD_S, Door
from serving.benchmark.replay.engine import ModelEngine, TooLong
from serving.benchmark.replay.request import Request
from serving.benchmark.replay.setup import Setup
from serving.benchmark.replay.switchboard import PERIOD_S as TELL_S
from serving.benchmark.replay.switchboard import Switchboard, router_of
from serving.benchmark.workloads import Lanes, Segment, Tokens, Workflow, Workload
from serving.sglang_plugin.cache import ForecacheCache
from serving.sglang_plugin.counters import POLICY_NS
from serving.sglang_plugin.settings import CacheSettings

# So large a vocabulary that different texts begin alike by no chance.
VOCABULARY = 1 << 40
LOAD_PERIOD_S = 0.005
SAMPLES = 200
PROGRESS_CALLS = 20
# When a client comes again that was refused and not told when, in seconds.
RETRY_S = 2.0

Progress = Callable[[int], None]


class Replay:
    """One policy on one setup. `run` leaves the records of a round, as the driver of the real system writes them.

    Args:
        first_pass: when each call was sent under another policy; for the clairvoyant alone.
        teacher: another workload of the kind, which forecasts learn from before.
    """

    record: RoundRecord

    def __init__(
        self,
        setup: Setup,
        contestant: Contestant,
        first_pass: Times | None = None,
        teacher: Workload | None = None,
    ) -> None:
        self._setup = setup
        self._contestant = contestant
        self.calls: list[CallRecord] = []
        self.sent: Times = {}
        self._source = source_of(contestant, setup.workload, setup.seed)
        if self._source is not None and teacher is not None:
            self._source.teach(teacher)
        self._tokens = Tokens(VOCABULARY)
        self._outputs = _outputs(setup.workload)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._desk = PlanDesk(itertools.count(1), prefetch=contestant.prefetch != "off")
        self._awaited: set[int] = set()  # engines that a plan is about to be sent to
        self._future = Future(setup.workload, first_pass) if first_pass is not None else None
        self._engines = [self._engine() for _ in range(setup.engines)]
        self._door = Door(contestant, self._engines, setup.bounds) if contestant.admission != "off" else None
        self._held: dict[str, tuple[Workflow, int]] = {}
        self._open = len(setup.workload.workflows)
        self._homes: dict[str, int] = {}
        self._visited: dict[str, set[int]] = {}
        self._live = [0] * setup.engines
        self._down: set[int] = set()
        self._switchboard = self._routing()
        self._stepping = [False] * setup.engines
        self._waiting: deque[Workflow] = deque()
        self._timeline: list[dict[str, float]] = []
        self._lost_counters: Counter[str] = Counter()
        self._door_free_s = 0.0

    def _engine(self) -> ModelEngine:
        setup, contestant = self._setup, self._contestant
        settings = CacheSettings(
            policy=contestant.policy,
            parameters=contestant.parameters,
            prefetch=contestant.prefetch,
            prefetch_reserve_tokens=setup.shape.chunk_tokens,
            prefetch_tokens_per_s=setup.costs.link_tokens_per_s,
        )
        cache_class = ClairvoyantCache if self._future is not None else ForecacheCache
        engine = ModelEngine(setup.shape, setup.costs, settings, self._finished, cache_class)
        if isinstance(engine.cache, ClairvoyantCache) and self._future is not None:
            engine.cache.future = self._future
        return engine

    @property
    def longest_wait_s(self) -> float:
        """Of the calls that a limit held."""
        return 0.0 if self._door is None else self._door.longest_wait_s

    @property
    def name(self) -> str:
        """Of the policy, and of the router if there is one."""
        router = self._setup.router
        return self._contestant.name if router is None else f"{self._contestant.name}{ROUTED_BY}{router}"

    def _routing(self) -> Switchboard | None:
        setup = self._setup
        if setup.router is None:
            return None
        router = router_of(setup.router, setup.costs, setup.workload)
        return Switchboard(router, setup.workload, setup.engines, self._engines.__getitem__)

    def run(self, progress: Progress = lambda calls: None) -> None:
        """Replays all of it; `progress` hears how many calls are over."""
        if self._switchboard is not None:
            self._tell_router(0.0)
            if self._setup.loss is not None:
                self._at(self._setup.loss.at_s, self._lose)
        self._arrive()
        if self._door is not None:
            self._at(PERIOD_S, self._find_limits)
        now = 0.0
        sample_every = 0.5
        next_sample = 0.0
        told = 0
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
            if now >= next_sample:
                self._timeline.append({"at_s": now} | self._pools(self._engines[0]) | self._door_sample())
                next_sample = now + sample_every
                if len(self._timeline) >= 2 * SAMPLES:
                    self._timeline = self._timeline[::2]
                    sample_every *= 2
            if len(self.calls) >= told + PROGRESS_CALLS:
                told = len(self.calls)
                progress(told)
        progress(len(self.calls))
        counters: Counter[str] = Counter(self._lost_counters)
        for engine in self._engines:
            counters.update(engine.cache._counters())
        counters["retractions"] = sum(engine.retractions for engine in self._engines)
        cpu_s = counters.pop(POLICY_NS, 0) / 1e9
        name, setup = self.name, self._setup
        self.record = RoundRecord(setup.point, name, setup.round, now, dict(counters), cpu_s, self._timeline)

    def write(self, writer: RecordWriter) -> None:
        """What `run` has brought, as a finished round."""
        writer.begin_round(self.record.point, self.record.policy, self.record.round)
        for call in self.calls:
            writer.call(call)
        writer.end_round(self.record)

    def _arrive(self) -> None:
        workflows = self._setup.workload.workflows
        if isinstance(self._setup.arrivals, Lanes):
            self._waiting.extend(workflows)
            for _ in range(min(self._setup.arrivals.lanes, len(workflows))):
                self._begin(self._waiting.popleft(), 0.0)
            return
        times = self._setup.arrivals.start_times(self._setup.workload)
        assert times is not None, "only lanes have no times"
        for workflow, start in zip(workflows, times, strict=True):
            self._begin(workflow, start)

    def _begin(self, workflow: Workflow, at: float) -> None:
        self._at(at, lambda now: self._send(workflow, 0, now))

    def _send(self, workflow: Workflow, index: int, now: float) -> None:
        self.sent.setdefault((workflow.id, index), now)
        if self._door is None:
            self._go(workflow, index, ANYWHERE, now)
        else:
            self._knock(self._door, workflow, index, now)

    def _knock(self, door: Door, workflow: Workflow, index: int, now: float) -> None:
        try:
            place = door.ask(workflow.id, now)
        except Refused as refused:
            again = now + (RETRY_S if refused.retry_after_s is None else max(RETRY_S, refused.retry_after_s))
            self._at(again, lambda then: self._send(workflow, index, then))
            return
        if place is None:
            self._held[workflow.id] = (workflow, index)
        else:
            self._go(workflow, index, place, now)

    def _go(self, workflow: Workflow, index: int, wanted: int, now: float) -> None:
        """A call goes to an engine; `wanted` is where it was let in."""
        if self._switchboard is not None:
            limited = self._door is not None and self._door.limited and wanted != ANYWHERE
            place = self._switchboard.place(workflow, index, now, wanted if limited else None)
            if self._door is not None:
                self._door.placed(workflow.id, place)
        elif wanted != ANYWHERE:
            place = wanted
        else:
            place = self._homes.get(workflow.id, self._home(workflow))
        self._enter(workflow, index, place, now)

    def _find_limits(self, now: float) -> None:
        assert self._door is not None, "there are limits only at a door"
        self._door.observe(now)
        self._let_in(now)
        if self._open:
            self._at(now + PERIOD_S, self._find_limits)

    def _let_in(self, now: float) -> None:
        """The calls that are held no more."""
        for name, place in self._door.admitted(now) if self._door is not None else ():
            self._go(*self._held.pop(name), place, now)

    def _enter(self, workflow: Workflow, index: int, place: int, now: float) -> None:
        """A call goes to an engine, which is its workflow's from now on."""
        before = self._homes.get(workflow.id)
        if before != place:
            self._homes[workflow.id] = place
            self._visited.setdefault(workflow.id, set()).add(place)
            self._live[place] += 1
            if before is not None:
                self._live[before] -= 1
        if self._future is not None:
            self._future.sent(workflow, index, now)
        self._say(workflow, self._source.started(workflow, index, now) if self._source else None, now)
        # One process takes all calls in, so calls that are made at once reach the engines one after another.
        self._door_free_s = max(now, self._door_free_s) + self._setup.costs.call_s / 2
        self._at(self._door_free_s, lambda then: self._submit(workflow, index, then))

    def _submit(self, workflow: Workflow, index: int, now: float) -> None:
        if self._homes[workflow.id] in self._down:
            self._send_again(workflow, index, now)
            return
        call = workflow.calls[index]
        prompt = self._tokens.prompt_ids(call, None)
        own = Segment(f"{workflow.id}/{index}/output", call.output_tokens)
        output = self._tokens.ids(self._outputs.get((workflow.id, index), own))
        engine = self._engines[self._homes[workflow.id]]
        try:
            engine.submit(Request(workflow, index, prompt, np.asarray(output)))
        except TooLong as error:
            self._refused(workflow, index, len(prompt), str(error), now)
            return
        self._wake(self._homes[workflow.id], now)

    def _wake(self, place: int, now: float) -> None:
        if not self._stepping[place]:
            self._stepping[place] = True
            self._engines[place].now = max(self._engines[place].now, now)
            self._at(now, lambda then: self._step(place, then))

    def _step(self, place: int, now: float) -> None:
        engine = self._engines[place]
        if engine.now > now:  # a plan has held it up since; what has come meanwhile is in the step
            self._at(engine.now, lambda then: self._step(place, then))
            return
        until = self._events[0][0] if self._events else float("inf")
        self._stepping[place] = engine.step(until)
        if self._stepping[place]:
            self._at(engine.now, lambda then: self._step(place, then))
        elif engine.cache.prefetcher.has_work and self._events:  # an idle engine goes on loading
            self._at(max(engine.now + LOAD_PERIOD_S, until), lambda then: self._wake(place, then))

    def _finished(self, request: Request) -> None:
        end = request.done_s + self._setup.costs.call_s / 2
        self._at(end, lambda now: self._answered(request, now))

    def _answered(self, request: Request, now: float) -> None:
        workflow, index, setup = request.workflow, request.index, self._setup
        call = workflow.calls[index]
        assert request.first_token_s is not None
        self._note(
            workflow,
            index,
            now,
            first_token_s=request.first_token_s + setup.costs.call_s / 2,
            prompt_tokens=len(request.origin_input_ids),
            hit_device=request.cached_tokens_device,
            hit_host=request.cached_tokens_host,
            output_tokens=request.output_tokens,
            pause_s=call.pause_s,
        )
        if self._door is not None:
            context = len(request.origin_input_ids) + request.output_tokens
            self._door.done(workflow.id, now, context, call.pause_s)
        if self._switchboard is not None:
            left = self._switchboard.answered(workflow.id, self._homes[workflow.id])
            if left is not None:
                self._retire(workflow.id, left)
        if index + 1 < len(workflow.calls):
            self._say(workflow, self._source.ended(workflow, index, now) if self._source else None, now)
            self._at(now + call.pause_s, lambda then: self._send(workflow, index + 1, then))
            return
        self._over(workflow, now)

    def _refused(self, workflow: Workflow, index: int, prompt_tokens: int, error: str, now: float) -> None:
        """The call can never run: it fails, and its workflow with it."""
        self._note(workflow, index, now, first_token_s=None, prompt_tokens=prompt_tokens, error=error)
        self._engines[self._homes[workflow.id]].cache.end_workflow(workflow.id)
        if self._switchboard is not None:
            self._switchboard.answered(workflow.id, self._homes[workflow.id])
        self._over(workflow, now)

    def _note(self, workflow: Workflow, index: int, now: float, **figures: Any) -> None:
        self.calls.append(
            CallRecord(
                point=self._setup.point,
                policy=self.name,
                round=self._setup.round,
                workflow=workflow.id,
                index=index,
                agent=workflow.calls[index].agent,
                sent_s=self.sent[workflow.id, index],
                end_s=now,
                **figures,
            )
        )

    def _over(self, workflow: Workflow, now: float) -> None:
        if self._source:
            self._source.over(workflow)
            self._desk.forget(workflow.id)
        home = self._homes[workflow.id]
        self._live[home] -= 1
        self._open -= 1
        for place in self._visited.pop(workflow.id) - {home}:
            self._retire(workflow.id, place)
        if self._switchboard is not None:
            self._switchboard.over(workflow.id)
        if self._door is not None:
            self._door.over(workflow.id, now)
        if self._waiting:
            self._begin(self._waiting.popleft(), now)
        self._let_in(now)

    def _say(self, workflow: Workflow, word: Word | None, now: float) -> None:
        if word is None:
            return
        place = self._homes[workflow.id]
        self._desk.say(str(place), workflow.id, word)
        if place not in self._awaited:
            self._awaited.add(place)
            self._at(now + COALESCE_S, lambda then: self._tell(place, then))

    def _tell(self, place: int, now: float) -> None:
        self._awaited.remove(place)
        for plan in self._desk.take(str(place)):
            self._engines[place].tell(plan, now)

    def _retire(self, workflow: str, place: int) -> None:
        """Nobody will come back to what an engine has of a workflow."""
        self._visited.get(workflow, set()).discard(place)
        self._engines[place].cache.end_workflow(workflow)

    def _tell_router(self, now: float) -> None:
        assert self._switchboard is not None
        self._switchboard.tell(now)
        if self._open:
            self._at(now + TELL_S, self._tell_router)

    def _lose(self, now: float) -> None:
        """The last engine is gone, and its calls are sent again."""
        assert self._switchboard is not None
        assert self._setup.loss is not None
        place = len(self._engines) - 1
        lost = self._engines[place].abandon()
        self._lost_counters.update(self._engines[place].cache._counters())
        self._engines[place] = self._engine()
        self._down.add(place)
        self._switchboard.lose(place)
        if self._door is not None:
            self._door.lose(place, now)
        for request in lost:
            self._send_again(request.workflow, request.index, now)
        self._at(now + self._setup.loss.back_s, lambda then: self._restore(place))

    def _restore(self, place: int) -> None:
        assert self._switchboard is not None
        self._down.discard(place)
        self._switchboard.restore(place)
        if self._door is not None:
            self._door.restore(place)

    def _send_again(self, workflow: Workflow, index: int, now: float) -> None:
        assert self._switchboard is not None
        assert self._setup.loss is not None
        self._at(now + self._setup.loss.again_s, lambda then: self._go(workflow, index, ANYWHERE, then))

    def _home(self, workflow: Workflow) -> int:
        """The engine of a workflow: the one with the fewest, ties by a hash that any run repeats."""
        mixed = zlib.crc32(workflow.id.encode())
        return min(range(len(self._engines)), key=lambda place: (self._live[place], (mixed + place) % len(self._live)))

    def _door_sample(self) -> dict[str, float]:
        return self._door.sample(0) if self._door is not None else {}

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    @staticmethod
    def _pools(engine: ModelEngine) -> dict[str, float]:
        occupied = engine.cache.pools.occupancy()
        prefetched = occupied.pop("prefetched_unused")
        named = {name.removeprefix("device_"): float(tokens) for name, tokens in occupied.items()}
        named["active"] += named.pop("dormant") - prefetched
        return named | {"prefetched": float(prefetched), "free": float(engine.cache.free_tokens())}


def _outputs(workload: Workload) -> dict[tuple[str, int], Segment]:
    """What calls generate, under the ids by which later prompts know it."""
    return {
        (workflow.id, segment.output_of): segment
        for workflow, _, call in workload.calls()
        for segment in call.prompt
        if segment.output_of is not None
    }
