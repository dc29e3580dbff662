"""What ingresses and coordinator say to each other of who may be in. `messages.py` makes bytes of it."""

from __future__ import annotations

from dataclasses import dataclass

# Of an `AdmissionReport`.
MAX_PAUSED = 2048
MAX_GATE_EVENTS = 512
GATE_EVENTS = ("held", "let_in", "paused")


@dataclass(frozen=True, slots=True)
class GateEvent:
    """What became of a workflow at the gate of an ingress.

    what: of GATE_EVENTS. `held`: a call of it waits for a place; `let_in`: it has one; `paused`: it has to give its
        place up between two calls.
    engine: where it lives; "" for one that lives nowhere yet.
    at: when, in seconds: of the gate's clock there, since 1970 in a report.
    waited_s: of `let_in`, how long its call was held.
    """

    workflow: str
    what: str
    engine: str
    at: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """What an ingress tells the coordinator of its gate: how things stand, and what has happened since the last report.

    ingress, epoch, number: its id, a number that is another after a restart, and one that grows with every report.
    admitted: workflows that count against a limit, by engine.
    held: workflows with a call that waits, by the engine where they live; "": nowhere yet.
    paused: workflows that had a place and are to wait for another, at most MAX_PAUSED; more are not told.
    events: the latest, in their order, at most MAX_GATE_EVENTS.
    mode: `on`, `off`, or a number of workflows for each engine.
    switched: when somebody has switched it to that, in seconds since 1970; 0: it is as configured.
    router, rerouted: likewise who decides where calls go, in the words of `serving.router_switch`, and since when.
    """

    ingress: str
    epoch: int
    number: int
    admitted: dict[str, int]
    held: dict[str, int]
    paused: list[str]
    events: list[GateEvent]
    mode: str | int = "on"
    switched: float = 0.0
    router: str = ""
    rerouted: float = 0.0


@dataclass(frozen=True, slots=True)
class IdleWorkflow:
    """A workflow between two calls, for the choice of whom to pause.

    tokens: of its context.
    gap_s: until its next call, as far as its calls so far can tell, in seconds.
    remaining: calls that are forecast to come, 1 without a forecast.
    """

    workflow: str
    tokens: int
    gap_s: float
    remaining: float


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """What the coordinator answers an ingress.

    limits: for every engine that it knows, how many workflows of this ingress may be in; None: all.
    idle: where this ingress has more in than the limit, workflows that may be paused, those with the smallest contexts.
    mode, switched: what any of the ingresses was switched to last, as `AdmissionReport` has them; this one's own if
        none was. Limits are those of this mode.
    router, rerouted: likewise.
    """

    limits: dict[str, int | None]
    idle: list[IdleWorkflow]
    mode: str | int = "on"
    switched: float = 0.0
    router: str = ""
    rerouted: float = 0.0
