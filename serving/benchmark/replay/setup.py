"""What a replay is of: a workload, arrivals, engines and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache_actor.admission import Bounds
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.workloads import Workload
from serving.benchmark.workloads.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Loss:
    """The last engine is gone at a time, with its cache and its calls, and comes back empty. Clients send what was lost
    again after a while. All in seconds."""

    at_s: float
    back_s: float = 60.0
    again_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is replayed, on what.

    Attributes:
        engines: how many; a workflow stays on one, unless a router says otherwise.
        router: who says which engine a call goes to; None: the one with the fewest workflows, for good.
        bounds: what those are promised who wait behind a limit; who is refused asks again.
        point: key of the sweep's point that it is, for the records.
    """

    workload: Workload
    arrivals: Arrivals
    costs: Costs
    shape: EngineShape
    engines: int = 1
    seed: int = 0
    point: str = "replay"
    round: int = 0
    router: str | None = None
    loss: Loss | None = None
    bounds: Bounds = field(default_factory=Bounds)
