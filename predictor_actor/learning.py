"""Learning while serving: a Markov chain from nothing at once, trained models when they have earned their place.

Pure: time is a parameter, training is done elsewhere (`retrain.py`). For one thread.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predictor_actor.base import AgentFacts, Forecasts, Prefix, WorkflowTrace
from predictor_actor.contest import LEAST_JUDGED, TO_GAIN, TO_LOSE, Candidate, has_drifted, margin
from predictor_actor.graphsage import GraphSage
from predictor_actor.markov import Markov
from predictor_actor.train import TrainConfig


@dataclass(frozen=True, slots=True)
class LearningConfig:
    """When to train and on what.

    Attributes:
        order, memory: of the Markov chains; as in training.
        first: workflows that must have ended before the first training.
        growth, step: the next one is due when their number has grown by this share, or by `step`.
        after_drift: when the model lost its place, or its loss rose, the next is trained on so many of the latest.
        max_traces, max_trace_bytes: what is kept of ended workflows for training, about; the oldest go.
        judged_at_once: workflows that one `judge` takes, so that it is short.
        max_waiting: workflows that wait to be judged; beyond it the oldest are learned from without being judged.
        retry_s, max_retry_s: pause after a failed training, doubled with each further one, up to the second.
    """

    order: int = TrainConfig().order
    memory: int = TrainConfig().memory
    first: int = 40
    growth: float = 0.5
    step: int = 200
    after_drift: int = 60
    max_traces: int = 1000
    max_trace_bytes: int = 64 << 20
    judged_at_once: int = 2
    max_waiting: int = 512
    retry_s: float = 60.0
    max_retry_s: float = 3600.0


class Learning:
    """What serves now, what may, and how good they have been lately.

    Two chains are kept. One observes calls as they begin, and every candidate that serves forecasts over it. It has
    seen the workflows that have just ended, so candidates are judged over a second one, which learns a workflow only
    after it was judged; else the chain would be asked for what it was told.
    """

    def __init__(self, config: LearningConfig | None = None, now: float = 0.0) -> None:
        self._config = config or LearningConfig()
        self._live = Markov(self._config.order, self._config.memory)
        self._rear = Markov(self._config.order, self._config.memory)
        self._baseline = Candidate(None, self._live, self._rear)
        self._place = self._baseline
        self._challenger: Candidate | None = None
        self._since, self._why = now, "nothing has been trained yet"
        self._traces: deque[WorkflowTrace] = deque()
        self._trace_bytes = 0
        self._waiting: deque[WorkflowTrace] = deque()
        self._counts: Counter[str] = Counter()
        # Workflows that had been learned at the start of the latest training, None before the first.
        self._trained_at: int | None = None
        self._training = self._drifted = False
        self._failures_in_turn = 0
        self._not_before = now
        self._last_training: dict[str, Any] | None = None

    @property
    def model(self) -> GraphSage | None:
        """What serves; None: the Markov chain."""
        return self._place.model

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        """Hears of agents, which may not have been called yet."""
        if facts:
            self._live.introduce(facts)
            self._rear.introduce(facts)

    def observe(self, begun: Sequence[Prefix]) -> None:
        """Learns from workflows whose latest calls have just begun."""
        for prefix in begun:
            self._live.observe(prefix)
        self._counts["observed"] += len(begun)

    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        """What serves forecasts."""
        self._counts["forecast"] += len(prefixes)
        return self._place.serving.forecast(prefixes)

    def ended(self, traces: Sequence[WorkflowTrace]) -> None:
        """Workflows have ended, whose calls were observed as they began."""
        for trace in traces:
            if not trace.calls or trace.ending == "open":
                continue
            self.introduce(trace.agents)
            self._live.ended(Prefix.of(trace.calls, trace.workflow))
            self._counts["ended"] += 1
            self._waiting.append(trace)
            if len(self._waiting) > self._config.max_waiting:
                self._learn(self._waiting.popleft())
                self._counts["not_judged"] += 1

    def replay(self, traces: Sequence[WorkflowTrace]) -> None:
        """Learns from workflows that ended before this process began, the oldest first; they are not judged on."""
        for trace in traces:
            if trace.calls and trace.ending != "open":
                self._live.learn(trace)
                self._learn(trace)
        if self._place.model is not None:
            self._trained_at = self._counts["learned"]

    def judge(self, now: float) -> bool:
        """Judges a few of the workflows that wait for it, and decides who serves. False: there was none."""
        if not self._waiting:
            return False
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._config.judged_at_once))]
        for candidate in self._candidates():
            candidate.judge(batch)
        for trace in batch:
            self._learn(trace)
        self._counts["judged"] += len(batch)
        self._decide(now)
        return True

    def due(self, now: float) -> list[WorkflowTrace] | None:
        """What to train on now, the oldest first; None: it is not time. Followed by `began`.

        Workflows that wait to be judged are not among it, so a newcomer is never judged on what it was trained on.
        """
        config = self._config
        if self._training or now < self._not_before or len(self._traces) < config.first:
            return None
        if self._trained_at is None:
            return list(self._traces)
        fresh = self._counts["learned"] - self._trained_at
        if self._drifted and fresh >= LEAST_JUDGED:
            return list(self._traces)[-config.after_drift :]
        if fresh >= max(LEAST_JUDGED, min(config.growth * self._trained_at, config.step)):
            return list(self._traces)
        return None

    def began(self) -> None:
        """A training has begun; `admit` or `failed` follows."""
        self._training = True
        self._trained_at = self._counts["learned"]

    def admit(self, trained: GraphSage, traces: int, seconds: float, now: float) -> None:
        """A training has ended: its model may serve once it is better than what does.

        It forecasts over the chain that serves, or that serves from now on if the model's own has seen more calls.
        """
        self._training = self._drifted = False
        self._failures_in_turn = 0
        self._counts["trained"] += 1
        self._last_training = {"at": now, "traces": traces, "seconds": round(seconds, 2), "result": trained.version}
        self._adopt(trained.markov)
        self._challenger = self._candidate(trained)

    def failed(self, reason: str, traces: int, seconds: float, now: float) -> None:
        """A training has failed: it is tried again, each time after a longer pause."""
        self._training = False
        self._counts["failed"] += 1
        self._failures_in_turn += 1
        pause = self._config.retry_s * 2 ** min(self._failures_in_turn - 1, 30)
        self._not_before = now + min(pause, self._config.max_retry_s)
        self._trained_at = None if not self._counts["trained"] and self._place.model is None else 0
        self._last_training = {"at": now, "traces": traces, "seconds": round(seconds, 2), "result": f"failed: {reason}"}

    def load(self, trained: GraphSage, why: str, now: float) -> None:
        """A model serves from now on, until the baseline or a newcomer is better."""
        self._adopt(trained.markov)
        self._challenger = None
        self._trained_at = self._counts["learned"]
        self._take(self._candidate(trained), why, now)

    def status(self) -> dict[str, Any]:
        """Who serves, since when and why; how good each candidate was lately; the latest training; counts."""
        return {
            "model": self._place.name,
            "since": self._since,
            "why": self._why,
            "candidates": {
                "baseline": self._baseline.recent(),
                "incumbent": None if self._place is self._baseline else self._place.recent(),
                "challenger": None if self._challenger is None else self._challenger.recent(),
            },
            "training": self._training,
            "last_training": self._last_training,
            "retry_at": self._not_before if self._failures_in_turn else None,
            "agents": len(self._live.graph.agents),
            "state_bytes": self._live.nbytes() + self._rear.nbytes(),
            "traces": len(self._traces),
            "waiting": len(self._waiting),
            "counts": dict(self._counts),
        }

    def _candidates(self) -> list[Candidate]:
        found = [self._baseline, self._place] if self._place is not self._baseline else [self._baseline]
        return found if self._challenger is None else [*found, self._challenger]

    def _decide(self, now: float) -> None:
        challenger, place = self._challenger, self._place
        if challenger is not None and (lead := margin(challenger, place)).beats(TO_GAIN):
            self._challenger = None
            self._take(challenger, f"better than {place.name} by {lead}", now)
        elif place is self._baseline:
            return
        elif (lead := margin(self._baseline, place)).beats(TO_LOSE):
            # It may win the place back, unless something newer waits already.
            self._challenger = challenger or place
            self._drifted = True
            self._counts["lost"] += 1
            self._take(self._baseline, f"better than {place.name} by {lead}", now)
        elif has_drifted(place):
            self._drifted = True

    def _take(self, candidate: Candidate, why: str, now: float) -> None:
        self._place, self._since, self._why = candidate, now, why
        self._counts["changes"] += 1

    def _candidate(self, trained: GraphSage) -> Candidate:
        return Candidate(trained, trained.over(self._live), trained.over(self._rear))

    def _adopt(self, chain: Markov) -> None:
        """Both chains go on from this one if it has seen more than they, or is of another kind."""
        other_kind = (chain.order, chain.graph.memory) != (self._live.order, self._live.graph.memory)
        if other_kind or chain.graph.calls > self._live.graph.calls:
            self._live, self._rear = copy.deepcopy(chain), copy.deepcopy(chain)
            for candidate in self._candidates():
                candidate.serving = candidate.model.over(self._live) if candidate.model else self._live
                candidate.judged = candidate.model.over(self._rear) if candidate.model else self._rear
        else:
            view = chain.graph.view()
            self.introduce(dict(zip(view.names, view.facts, strict=True)))

    def _learn(self, trace: WorkflowTrace) -> None:
        """Nobody will be judged on it any more: the chain of those judged may know it, and the next model."""
        self._rear.learn(trace)
        self._traces.append(trace)
        self._counts["learned"] += 1
        self._trace_bytes += _bytes(trace)
        while len(self._traces) > self._config.max_traces or self._trace_bytes > self._config.max_trace_bytes:
            self._trace_bytes -= _bytes(self._traces.popleft())


def _bytes(trace: WorkflowTrace) -> int:
    """Memory of a trace, about."""
    return 500 + sum(300 + len(call.hidden or b"") for call in trace.calls)
