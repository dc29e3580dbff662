"""What a router knows of one engine: its newest snapshot, and what was sent there since. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cache_actor.snapshots import NOTHING, EngineSnapshot, Resident
from serving.routing.rates import Rates

# An engine of which nothing is heard is taken for a new one for so long, in seconds.
NEW_S = 10.0
# What was sent before, in seconds, is over or known.
SENT_KEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A call that was sent to an engine.

    Attributes:
        tokens: that it has to compute there.
        context_tokens: of its workflow, if it is new there; else 0.
        over: whether it has been answered: what it brought is there, and nobody waits for it any more.
    """

    at: float
    workflow: str
    agent: str
    prompt_tokens: int
    tokens: int
    context_tokens: int
    over: bool = False


class KnownEngine:
    """One engine.

    Args:
        rates: what work costs there, until it has been measured.

    Attributes:
        pending, running, needed: as `EngineSnapshot` has them, with what was sent since.
        snapshot: None before the first.
        rates: what work costs there.
    """

    __slots__ = (
        "_anchors",
        "_expected_rates",
        "_met",
        "_resident",
        "_resident_anchors",
        "_sent",
        "_workflows",
        "capacity",
        "draining",
        "name",
        "needed",
        "pending",
        "rates",
        "running",
        "snapshot",
    )

    def __init__(self, name: str, rates: Rates) -> None:
        self.name = name
        self.rates = self._expected_rates = rates
        self.snapshot: EngineSnapshot | None = None
        self._met = math.inf
        self._sent: deque[Sent] = deque()
        self._count_anew()

    def see(self, snapshot: EngineSnapshot) -> None:
        """A snapshot knows what was sent before it was taken; one that is not newer is left out."""
        if self.snapshot is not None and snapshot.version <= self.snapshot.version:
            return
        self.snapshot = snapshot
        self.rates = self._expected_rates.measured(snapshot.prefill_token_s, snapshot.running_call_s)
        while self._sent and self._sent[0].at < snapshot.at:
            self._sent.popleft()
        self._count_anew()

    def send(self, sent: Sent) -> None:
        while self._sent and sent.at - self._sent[0].at > SENT_KEPT_S:  # no snapshot comes
            self._sent.popleft()
        self._sent.append(sent)
        self._count(sent)

    def answered(self, workflow: str) -> None:
        """The call of a workflow that was sent first, of those since the snapshot, is over."""
        for place, sent in enumerate(self._sent):
            if sent.workflow == workflow and not sent.over:
                self._sent[place] = replace(sent, over=True)
                self.pending -= sent.tokens
                self.running -= 1
                return

    def resident(self, workflow: str) -> Resident:
        """What is there of a workflow, or will be when what was sent has been computed."""
        known = self._resident.get(workflow, NOTHING)
        sent = self._workflows.get(workflow, 0) if self._workflows else 0
        return known if sent <= known.device else Resident(sent, known.host)

    def anchor_tokens(self, agent: str) -> int:
        """Likewise of an agent's anchor; of one that was only sent, the shortest prompt that may begin with it."""
        return self._resident_anchors.get(agent) or self._anchors.get(agent, 0)

    def is_new(self, now: float) -> bool:
        """Whether nothing has been heard of it, and it is not long that this was asked first."""
        self._met = min(self._met, now)
        return self.snapshot is None and now - self._met <= NEW_S

    def is_fresh(self, now: float, stale_s: float) -> bool:
        return self.snapshot is not None and now - self.snapshot.at <= stale_s

    def _count_anew(self) -> None:
        snapshot = self.snapshot
        self.pending = 0 if snapshot is None else snapshot.pending_tokens
        self.running = 0 if snapshot is None else snapshot.running_calls
        self.needed = 0 if snapshot is None else snapshot.needed_tokens
        # A new engine is empty, and the largest until it has been heard of.
        self.capacity = math.inf if snapshot is None else max(1, snapshot.capacity_tokens)
        self.draining = snapshot is not None and snapshot.draining
        self._resident: Mapping[str, Resident] = {} if snapshot is None else snapshot.workflows
        self._resident_anchors: Mapping[str, int] = {} if snapshot is None else snapshot.anchors
        self._workflows: dict[str, int] = {}
        self._anchors: dict[str, int] = {}
        for sent in self._sent:
            self._count(sent)

    def _count(self, sent: Sent) -> None:
        self.pending += 0 if sent.over else sent.tokens
        self.running += not sent.over
        self.needed += sent.context_tokens
        self._workflows[sent.workflow] = sent.prompt_tokens
        self._anchors[sent.agent] = min(sent.prompt_tokens, self._anchors.get(sent.agent, sent.prompt_tokens))
