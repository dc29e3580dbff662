"""What the ingresses say of their gates: who is in, who waits, who is paused. Pure; time is a parameter."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from cache_actor.admission_messages import GATE_EVENTS, MAX_GATE_EVENTS, MAX_PAUSED, AdmissionReport, GateEvent

# An ingress that has not been heard of for so long, in seconds, is taken for gone.
INGRESS_SILENT_S = 15.0
INGRESSES_KEPT = 256
# Workflows whose first call nobody has reported yet, and what is kept of each.
EARLY_KEPT = 2048
EARLY_EVENTS = 4
# Under this name are those that live on no engine yet.
NOWHERE = ""


@dataclass(slots=True)
class IngressState:
    """An ingress as it last reported: workflows that are in and that wait, by engine, those that are paused, and the
    mode of its admission with the time when it was switched to that; likewise its router."""

    id: str
    epoch: int
    number: int = 0
    last_heard: float = 0.0
    admitted: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    mode: str | int = "on"
    switched: float = 0.0
    router: str = ""
    rerouted: float = 0.0

    def demand(self, engine: str) -> int:
        """Workflows of it that are on the engine, or would be if they could."""
        return self.admitted.get(engine, 0) + self.held.get(engine, 0) + self.held.get(NOWHERE, 0)


class Ingresses:
    """All of them; bounded.

    Attributes:
        known: by id.
        paused: for each paused workflow, by how many ingresses.
    """

    def __init__(self) -> None:
        self.known: OrderedDict[str, IngressState] = OrderedDict()
        self.paused: Counter[str] = Counter()
        self._changed: dict[str, bool] = {}
        self._early: OrderedDict[str, list[GateEvent]] = OrderedDict()

    def hear(self, report: AdmissionReport, now: float) -> list[GateEvent]:
        """Takes a report in, unless a later one has overtaken it; the events in it. `now` in seconds since 1970."""
        state = self.known.get(report.ingress)
        if state is None or state.epoch != report.epoch:
            if state is not None:
                self._pause(state, frozenset())
            state = self.known[report.ingress] = IngressState(report.ingress, report.epoch)
            while len(self.known) > INGRESSES_KEPT:
                self._lose(next(iter(self.known)))
        elif report.number <= state.number:
            return []
        self.known.move_to_end(report.ingress)
        state.number, state.last_heard = report.number, now
        state.admitted, state.held = report.admitted, report.held
        state.mode, state.switched = report.mode, report.switched
        state.router, state.rerouted = report.router, report.rerouted
        self._pause(state, frozenset(report.paused[:MAX_PAUSED]))
        return [event for event in report.events[-MAX_GATE_EVENTS:] if event.what in GATE_EVENTS]

    def expire(self, now: float) -> None:
        """Forgets those that are silent."""
        for state in [one for one in self.known.values() if now - one.last_heard > INGRESS_SILENT_S]:
            self._lose(state.id)

    def admitted(self, engine: str) -> int:
        """Workflows that are in, over all ingresses."""
        return sum(state.admitted.get(engine, 0) for state in self.known.values())

    def held(self, engine: str) -> int:
        """Workflows with a call that waits for the engine, or for any."""
        return sum(state.held.get(engine, 0) + state.held.get(NOWHERE, 0) for state in self.known.values())

    def waiting(self, engine: str, engines: int) -> float:
        """Workflows that wait for an engine, and its share of those that wait for any of so many."""
        own = sum(state.held.get(engine, 0) for state in self.known.values())
        return own + sum(state.held.get(NOWHERE, 0) for state in self.known.values()) / max(1, engines)

    def demands(self, engine: str) -> dict[str, int]:
        """What each ingress has for the engine: those in, and those that wait."""
        return {state.id: state.demand(engine) for state in self.known.values()}

    def mode_for(self, ingress: str) -> tuple[str | int, float]:
        """What any of them was switched to last, and when; the ingress's own mode if none was."""
        latest = max(self.known.values(), key=lambda state: (state.switched, state.id == ingress))
        return latest.mode, latest.switched

    def router(self) -> tuple[str, float]:
        """Which router any of them was switched to last, and when; the time is 0 if none was."""
        latest = max(self.known.values(), key=lambda state: state.rerouted)
        return latest.router, latest.rerouted

    def take_changed(self) -> dict[str, bool]:
        """The workflows of which was heard, since this was asked last, that they are paused (True) or no more."""
        changed, self._changed = self._changed, {}
        return changed

    def keep(self, event: GateEvent) -> None:
        """For a workflow of which nothing else is known yet."""
        events = self._early.setdefault(event.workflow, [])
        events.append(event)
        del events[:-EARLY_EVENTS]
        while len(self._early) > EARLY_KEPT:
            self._early.popitem(last=False)

    def kept(self, workflow: str) -> list[GateEvent]:
        """What was kept of a workflow, which is known from now on."""
        return self._early.pop(workflow, [])

    def _lose(self, ingress: str) -> None:
        self._pause(self.known.pop(ingress), frozenset())

    def _pause(self, state: IngressState, paused: frozenset[str]) -> None:
        """These, and no others, are paused by an ingress."""
        for workflow in paused - state.paused:
            self.paused[workflow] += 1
            self._changed[workflow] = True
        for workflow in state.paused - paused:
            self.paused[workflow] -= 1
            if not self.paused[workflow]:
                del self.paused[workflow]
                self._changed[workflow] = False
        state.paused = paused
