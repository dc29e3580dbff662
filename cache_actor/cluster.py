"""What the coordinator knows of all engines and workflows. Pure: messages in, state out; time is a parameter."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from cache_actor.accuracy import Accuracy
from cache_actor.admission_messages import AdmissionReport
from cache_actor.decisions import entry_of
from cache_actor.forecast import Forecast
from cache_actor.ingresses import Ingresses
from cache_actor.messages import CallEvent, EngineReport, Eviction, Receipt, SyncReport, WorkflowSeen
from cache_actor.paths import CallPath
from cache_actor.snapshots import Resident
from cache_actor.state import EngineState, WorkflowState
from predictor_actor.base import Ending, Prefix, WorkflowTrace

ENDED_KEPT = 2000
TRACES_WAITING = 1000
CALLS_WAITING = 8192
ENGINES_KEPT = 4096
# How long an engine counts as under pressure after the last eviction of something alive, in seconds.
PRESSURE_S = 60.0
ANCHORS_KEPT = 256
AGENTS_KEPT = 512
# Of the engines' own counters, what is summed over all of them, in tokens.
CACHE_COUNTERS = ("prefetch_loaded", "prefetch_used", "prefetch_late", "prefetch_wasted", "regret", "computed")
# An engine that has not been heard of for so long, in seconds, is taken for gone.
ENGINE_SILENT_S = 15.0

_ENDINGS: dict[str, Ending] = {"final": "final", "deleted": "deleted", "idle": "idle"}


class Cluster:
    """All engines and workflows; bounded.

    Args:
        max_workflows: living ones; beyond it the one that was seen longest ago is forgotten, with an open end.

    Attributes:
        asked: workflows that are known anew; a coordinator that is gone had them forecast.
        ingresses: who is in and who waits.
        anchors: what each agent's prompts begin with, token ids as little-endian int32.
        counts: events, ends, receipts by status, evicted tokens by tier and reason, …
    """

    def __init__(self, max_workflows: int = 100_000) -> None:
        self.engines: OrderedDict[str, EngineState] = OrderedDict()
        self.workflows: OrderedDict[str, WorkflowState] = OrderedDict()
        self.ended: OrderedDict[str, WorkflowState] = OrderedDict()
        self.asked: dict[str, None] = {}
        self.anchors: OrderedDict[str, bytes] = OrderedDict()
        self.ingresses = Ingresses()
        self.accuracy = Accuracy()
        self.counts: Counter[str] = Counter()
        self._begun: deque[Prefix] = deque(maxlen=CALLS_WAITING)
        self._traces: deque[WorkflowTrace] = deque(maxlen=TRACES_WAITING)
        self._gone: list[str] = []
        self._max_workflows = max_workflows
        self._generations = 0

    def hear(self, report: SyncReport, now: float) -> EngineState:
        """Takes an engine's report in; the engine as it is known now. `now` in seconds since 1970."""
        engine = self.engines.get(report.engine)
        if engine is None or engine.epoch != report.epoch:
            if engine is not None:
                self._lose(engine)
            engine = self.engines[report.engine] = EngineState(report.engine, report.epoch)
            self.forget_told(engine)
            while len(self.engines) > ENGINES_KEPT:
                self._lose(self.engines.popitem(last=False)[1])
        elif report.number != engine.number + 1:
            self.counts["reports_missed"] += 1
            self.forget_told(engine)
        self.engines.move_to_end(engine.id)
        engine.number = report.number
        engine.plan = max(engine.plan, report.applied_plan)
        engine.last_heard = now
        engine.running, engine.waiting = report.running, report.waiting
        if report.pressure > engine.pressure:
            if now >= engine.pressed_until:
                engine.news.update(engine.workflows)
            engine.pressed_until = now + PRESSURE_S
        calls = sum(event.over for event in report.events)
        if engine.work.at:  # the calls of what it has done before this was first heard of it are not known
            engine.rates.worked(engine.work, report.work, calls)
        engine.pressure, engine.work = report.pressure, report.work
        engine.pending_tokens, engine.draining = report.pending_tokens, report.draining
        for seen in report.seen:
            self._see(engine, seen, now)
        for event in report.events:
            self._call(engine, event, now)
        for workflow, how in report.ended.items():
            engine.ends.pop(workflow, None)
            state = self.workflows.get(workflow)
            if how == "idle" and state is not None and state.engine != engine.id:
                self._leave(state, engine.id)  # idle there, since it calls elsewhere
            else:
                self._end(workflow, _ENDINGS.get(how, "final"), engine.id, now)
        for told in report.cache:
            self._cache(engine, told, now)
        for anchor in report.anchors:
            self.anchors[anchor.agent] = anchor.ids
            self.anchors.move_to_end(anchor.agent)
            if len(self.anchors) > ANCHORS_KEPT:
                self.anchors.popitem(last=False)
        for agent, done in report.warmed.items():
            engine.warming.pop(agent, None)
            self.counts["warm_ups_done" if done else "warm_ups_failed"] += 1
            if done:
                _note(engine.agents, agent, now)
        return engine

    def hear_ingress(self, report: AdmissionReport, now: float) -> None:
        """Takes an ingress's report in. `now` in seconds since 1970."""
        events = self.ingresses.hear(report, now)
        self._mark_paused()
        for event in events:
            self.counts[f"gate_{event.what}"] += 1
            if (state := self.known(event.workflow)) is not None:
                state.decisions.append(entry_of(event))
            else:  # its first call has not been heard of
                self.ingresses.keep(event)

    def forget_told(self, engine: EngineState) -> None:
        """It may not hold what it was told, nor have told all: everything anew."""
        self._generations += 1
        engine.generation = self._generations
        engine.tell_all = True
        engine.news.update(engine.workflows)

    def expect(self, workflow: str, forecast: Forecast, now: float) -> None:
        """A forecast has come; one that is older than what is known of the workflow's future is dropped."""
        state = self.workflows.get(workflow)
        if state is None:
            self.counts["forecasts_too_late"] += 1
            return
        if state.forecast is not None and state.forecast.after > forecast.after:
            return
        state.forecast = forecast
        if forecast.after == state.path.length:
            state.expected.appendleft(forecast.likeliest)
        self.counts["forecasts"] += 1
        if state.engine in self.engines:
            self.engines[state.engine].news[workflow] = None

    def take(self, most: int) -> tuple[list[Prefix], list[Prefix], list[WorkflowTrace]]:
        """What a predictor should hear next, at most so much of each: a prefix for each call that has begun, those of
        workflows that are only known anew, and traces of workflows that have ended."""
        begun = [self._begun.popleft() for _ in range(min(len(self._begun), most))]
        asked = list(self.asked)[:most]
        for workflow in asked:
            del self.asked[workflow]
        traces = [self._traces.popleft() for _ in range(min(len(self._traces), most))]
        return begun, [self.workflows[workflow].path.prefix(workflow) for workflow in asked], traces

    def take_gone(self) -> list[str]:
        """The workflows that have ended, or were forgotten, since this was asked last."""
        gone, self._gone = self._gone, []
        return gone

    def ask_again(self, prefixes: Iterable[Prefix]) -> None:
        """No forecast came for these; those that live still want one."""
        self.asked.update((one.workflow, None) for one in prefixes if one.workflow in self.workflows)

    @property
    def has_moved(self) -> bool:
        return bool(self._begun or self.asked or self._traces)

    def expire(self, now: float, idle_s: float) -> None:
        """Forgets engines that are silent, and workflows that nobody has spoken of for `idle_s`."""
        for engine in [one for one in self.engines.values() if now - one.last_heard > ENGINE_SILENT_S]:
            del self.engines[engine.id]
            self._lose(engine)
        self.ingresses.expire(now)
        self._mark_paused()
        while self.workflows:
            state = next(iter(self.workflows.values()))
            if now - state.last_seen <= idle_s:
                return
            self._end(state.id, "open", "", now)

    def known(self, workflow: str) -> WorkflowState | None:
        """A living workflow, or one that has ended not long ago."""
        return self.workflows.get(workflow) or self.ended.get(workflow)

    def _mark_paused(self) -> None:
        """What has changed of who is paused is news to the engine where they live."""
        for workflow, paused in self.ingresses.take_changed().items():
            state = self.workflows.get(workflow)
            if state is not None and state.paused != paused:
                state.paused = paused
                if state.engine in self.engines:
                    self.engines[state.engine].news[workflow] = None

    def _see(self, engine: EngineState, seen: WorkflowSeen, now: float) -> None:
        state = self.workflows.get(seen.workflow)
        if state is not None and state.path.length >= seen.length:
            if state.engine in (engine.id, ""):
                state.path.settle(seen.running)
                self._place(state, engine, now)
                engine.news[state.id] = None
            else:  # it has moved since
                state.engines.add(engine.id)
            return
        try:
            path = CallPath.seen(seen.agents, seen.numbers, seen.length, seen.running)
        except ValueError:
            self.counts["reports_malformed"] += 1
            return
        state = state or self._new(seen.workflow, seen.parent)
        state.path = path
        state.expected.clear()
        self._place(state, engine, now)
        engine.news[state.id] = None
        self.asked[state.id] = None

    def _call(self, engine: EngineState, event: CallEvent, now: float) -> None:
        state = self.workflows.get(event.workflow)
        if event.over:
            self.counts["calls_over"] += 1
            for name in ("hit_device", "hit_host", "hit_storage", "prompt_tokens", "output_tokens"):
                self.counts[name] += getattr(event, name)
            if state is not None:
                state.path.over(event.agent, event.at, event.prompt_tokens, event.output_tokens)
                tokens = (event.prompt_tokens, event.hit_device, event.hit_host)
                state.decisions.append((event.at, "over", engine.id, event.agent, *tokens))
                if state.engine in (engine.id, ""):
                    self._place(state, engine, now)
                    if event.output_tokens:
                        self._settle(state, now)
                    engine.news[state.id] = None
            return
        self.counts["calls_begun"] += 1
        state = state or self._new(event.workflow, event.parent)
        if state.path.length and (state.forecast is None or state.forecast.after < state.path.length):
            state.expected.appendleft(())  # there was none in time
        self.accuracy.came(event.agent, state.expected)
        state.path.began(event.agent, event.at, event.prompt_tokens)
        self._place(state, engine, now)
        state.decisions.append((event.at, "call", engine.id, event.agent))
        _note(engine.agents, event.agent, now)
        engine.news[state.id] = None
        self._begun.append(state.path.prefix(state.id))

    def _new(self, workflow: str, parent: str | None) -> WorkflowState:
        state = WorkflowState(workflow, parent, paused=workflow in self.ingresses.paused)
        if (before := self.ended.pop(workflow, None)) is not None:
            state.decisions = before.decisions
        state.decisions.extend(map(entry_of, self.ingresses.kept(workflow)))
        self.workflows[workflow] = state
        while len(self.workflows) > self._max_workflows:
            self._end(next(iter(self.workflows)), "open", "", state.last_seen)
        return state

    def _place(self, state: WorkflowState, engine: EngineState, now: float) -> None:
        """It makes a call on an engine, or is known to live there."""
        if state.engine != engine.id:
            if state.engine in self.engines:
                self.engines[state.engine].workflows.pop(state.id, None)
            state.engine = engine.id
        engine.workflows[state.id] = None
        engine.ends.pop(state.id, None)
        state.engines.add(engine.id)
        state.last_seen = now
        self.workflows.move_to_end(state.id)

    def _settle(self, state: WorkflowState, now: float) -> None:
        """A call of it was answered where it lives: what engines hold of it where it lived before is of no more use."""
        for name in state.engines - {state.engine}:
            if name in self.engines:
                self.engines[name].ends[state.id] = None
            self._leave(state, name)
            self.counts["copies_retired"] += 1
            state.decisions.append((now, "left", name, state.engine))

    def _leave(self, state: WorkflowState, name: str) -> None:
        """An engine where it lived before holds nothing of it any more."""
        state.engines.discard(name)
        state.residency.pop(name, None)
        if name in self.engines:
            self.engines[name].news.pop(state.id, None)

    def _end(self, workflow: str, how: Ending, told_by: str, now: float) -> None:
        state = self.workflows.pop(workflow, None)
        self.asked.pop(workflow, None)
        if state is None:
            return
        self._gone.append(workflow)
        self.counts[f"ended_{how}"] += 1
        if how != "open":
            self.accuracy.ended(list(state.expected))
        if state.path.length:
            self._traces.append(state.path.trace(workflow, how))
        for name in state.engines:
            engine = self.engines.get(name)
            if engine is None:
                continue
            engine.workflows.pop(workflow, None)
            engine.news.pop(workflow, None)
            if name != told_by:
                engine.ends[workflow] = None
        state.decisions.append((now, "end", told_by, how))
        state.forecast = None
        self.ended[workflow] = state
        while len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)

    def _cache(self, engine: EngineState, report: EngineReport, now: float) -> None:
        self.counts["plans_applied" if report.accepted else "plans_refused"] += 1
        if not report.accepted:
            self.forget_told(engine)
        for name in CACHE_COUNTERS:
            self.counts[f"cache_{name}"] += max(0, report.counters.get(name, 0) - engine.counters.get(name, 0))
        engine.counters, engine.pools = report.counters, report.pools
        for workflow, tokens in report.residency.items():
            state = self.workflows.get(workflow)
            if state is not None and engine.id in state.engines and len(tokens) == 2:
                state.residency[engine.id] = Resident(tokens[0], tokens[1])
        for receipt in report.receipts:
            self._receipt(engine, receipt, now)
        for eviction in report.evictions:
            self._evicted(engine, eviction, now)

    def _receipt(self, engine: EngineState, receipt: Receipt, now: float) -> None:
        self.counts[f"orders_{receipt.status}"] += 1
        order = engine.orders.pop(receipt.order, None)
        if order is None:
            return
        workflow, agent, _, _ = order
        if (state := self.known(workflow)) is not None:
            why = f" ({receipt.reason})" if receipt.reason else ""
            state.decisions.append((now, "receipt", engine.id, agent, receipt.status, receipt.tokens, why))
            if receipt.tokens and engine.id in state.residency:
                there = state.residency[engine.id]
                state.residency[engine.id] = Resident(
                    there.device + receipt.tokens, max(0, there.host - receipt.tokens)
                )

    def _evicted(self, engine: EngineState, eviction: Eviction, now: float) -> None:
        self.counts[f"evicted_{eviction.tier}_{eviction.reason}"] += eviction.tokens
        state = self.known(eviction.workflow)
        if state is None:
            return
        reason = _WHY.get(eviction.reason, eviction.reason)
        state.decisions.append((now, "evicted", engine.id, eviction.tokens, eviction.tier, reason))
        if engine.id in state.residency and state.id in self.workflows:
            there = state.residency[engine.id]
            if eviction.tier == "device":
                gone = min(eviction.tokens, there.device)
                state.residency[engine.id] = Resident(there.device - gone, there.host + gone)
            else:
                state.residency[engine.id] = Resident(there.device, there.host - min(eviction.tokens, there.host))
            engine.news[state.id] = None

    def _lose(self, engine: EngineState) -> None:
        """The engine is gone, and what it held with it."""
        self.counts["engines_lost"] += 1
        for state in self.workflows.values():  # any of them may have been there before
            state.engines.discard(engine.id)
            state.residency.pop(engine.id, None)
            if state.engine == engine.id:
                state.engine = ""
                state.path.settle(running=0)


_WHY = {
    "retired": "its workflow was over, so it was worth nothing",
    "low_value": "of all that was there, the policy expected the least use of it",
    "recency": "it had not been used for longest, and nothing was forecast of it",
}


def _note(agents: OrderedDict[str, float], agent: str, now: float) -> None:
    agents[agent] = now
    agents.move_to_end(agent)
    if len(agents) > AGENTS_KEPT:
        agents.popitem(last=False)
