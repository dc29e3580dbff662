"""What is known of one workflow and of one engine: the entries of `Cluster`."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from cache_actor.decisions import Decision
from cache_actor.forecast import Forecast
from cache_actor.messages import Work
from cache_actor.paths import CallPath
from cache_actor.snapshots import Resident
from cache_actor.work_rates import WorkRates
from predictor_actor.base import HORIZON

DECISIONS_KEPT = 40


@dataclass(slots=True)
class WorkflowState:
    """A living workflow.

    Attributes:
        engine: where it made its latest call; `engines` all that may hold something of it.
        forecast: the newest; `expected` what the latest ones held for likeliest, the newest first.
        residency: what is there of it, by engine, as last heard.
        paused: whether an ingress has taken its place from it: its next call comes late.
    """

    id: str
    parent: str | None = None
    path: CallPath = field(default_factory=CallPath)
    engine: str = ""
    engines: set[str] = field(default_factory=set)
    forecast: Forecast | None = None
    expected: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=HORIZON))
    residency: dict[str, Resident] = field(default_factory=dict)
    last_seen: float = 0.0
    paused: bool = False
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))


@dataclass(slots=True)
class EngineState:
    """An engine.

    Attributes:
        number: of its latest report; `plan` of the latest plan that it was sent or has applied.
        workflows: living ones whose latest call was here.
        news: workflows about which it has not been told the newest.
        ends: workflows that ended elsewhere and of which it may hold something.
        orders: prefetches without a receipt, by number: workflow, agent, tokens and time (seconds since 1970).
        planned_at, renewed_at: when it was last given a plan, and when its tables were last renewed.
        agents: those that have called here, or whose anchors were warmed, by when; `warming` those under way.
        pressure: as it last reported it; until `pressed_until` it counts as under pressure.
        work: what it has done, as last reported, and `rates` what that has cost.
        pending_tokens, draining: as last reported.
        needed: tokens of its workflows' contexts, as counted at `needed_at`.
        limit: workflows that may be in at once, None: all; `found` what a policy says it should be, told or not, and
            `figures` those behind it.
        holds_tables: whether it was told values that it has not been told to forget.
        generation: another number whenever it may not hold what it was told before.
    """

    id: str
    epoch: int
    number: int = 0
    plan: int = 0
    last_heard: float = 0.0
    running: int = 0
    waiting: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)
    workflows: dict[str, None] = field(default_factory=dict)
    news: dict[str, None] = field(default_factory=dict)
    ends: dict[str, None] = field(default_factory=dict)
    orders: dict[int, tuple[str, str, int, float]] = field(default_factory=dict)
    planned_at: float = 0.0
    renewed_at: float = 0.0
    agents: OrderedDict[str, float] = field(default_factory=OrderedDict)
    warming: dict[str, float] = field(default_factory=dict)
    pressure: int = 0
    pressed_until: float = 0.0
    work: Work = field(default_factory=Work)
    rates: WorkRates = field(default_factory=WorkRates)
    pending_tokens: int = 0
    draining: bool = False
    needed: int = 0
    needed_at: float = 0.0
    limit: int | None = None
    found: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    holds_tables: bool = False
    generation: int = 0
    tell_all: bool = False
