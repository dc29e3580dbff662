"""What a router knows of one engine: its newest snapshot, and what was sent there since. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from cache_actor.snapshots import EngineSnapshot, Resident

NOTHING = Resident(0)


@dataclass(frozen=True, slots=True)
class Sent:
    """A call that was sent to an engine.

    Attributes:
        tokens: that it has to compute there.
        context_tokens: of its workflow, if it is new there; else 0.
    """

    at: float
    workflow: str
    agent: str
    prompt_tokens: int
    tokens: int
    context_tokens: int


class KnownEngine:
    """One engine.

    Attributes:
        pending, running, needed: as `EngineSnapshot` has them, with what was sent since.
        snapshot: None before the first.
    """

    __slots__ = (
        "_anchors",
        "_resident",
        "_resident_anchors",
        "_sent",
        "_workflows",
        "capacity",
        "draining",
        "name",
        "needed",
        "pending",
        "running",
        "snapshot",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.snapshot: EngineSnapshot | None = None
        self._sent: deque[Sent] = deque()
        self._count_anew()

    def see(self, snapshot: EngineSnapshot) -> None:
        """A snapshot knows what was sent before it was taken; one that is not newer is left out."""
        if self.snapshot is not None and snapshot.version <= self.snapshot.version:
            return
        self.snapshot = snapshot
        while self._sent and self._sent[0].at < snapshot.at:
            self._sent.popleft()
        self._count_anew()

    def send(self, sent: Sent) -> None:
        self._sent.append(sent)
        self._count(sent)

    def resident(self, workflow: str) -> Resident:
        """What is there of a workflow, or will be when what was sent has been computed."""
        known = self._resident.get(workflow, NOTHING)
        sent = self._workflows.get(workflow, 0) if self._workflows else 0
        return known if sent <= known.device else Resident(sent, known.host)

    def anchor_tokens(self, agent: str) -> int:
        """Likewise of an agent's anchor; of one that was only sent, the shortest prompt that may begin with it."""
        return self._resident_anchors.get(agent) or self._anchors.get(agent, 0)

    def is_fresh(self, now: float, stale_s: float) -> bool:
        return self.snapshot is not None and now - self.snapshot.at <= stale_s

    def _count_anew(self) -> None:
        snapshot = self.snapshot
        self.pending = 0 if snapshot is None else snapshot.pending_tokens
        self.running = 0 if snapshot is None else snapshot.running_calls
        self.needed = 0 if snapshot is None else snapshot.needed_tokens
        self.capacity = 1 if snapshot is None else max(1, snapshot.capacity_tokens)
        self.draining = snapshot is not None and snapshot.draining
        self._resident: Mapping[str, Resident] = {} if snapshot is None else snapshot.workflows
        self._resident_anchors: Mapping[str, int] = {} if snapshot is None else snapshot.anchors
        self._workflows: dict[str, int] = {}
        self._anchors: dict[str, int] = {}
        for sent in self._sent:
            self._count(sent)

    def _count(self, sent: Sent) -> None:
        self.pending += sent.tokens
        self.running += 1
        self.needed += sent.context_tokens
        self._workflows[sent.workflow] = sent.prompt_tokens
        self._anchors[sent.agent] = min(sent.prompt_tokens, self._anchors.get(sent.agent, sent.prompt_tokens))
