"""What routers are told of engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Resident:
    """What an engine holds of one workflow, in tokens.

    Attributes:
        device: on the device.
        host: on the host alone.
        coming: of `host`, what is ordered to the device.
    """

    device: int
    host: int = 0
    coming: int = 0


NOTHING = Resident(0)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine at one moment.

    Attributes:
        version: a later snapshot of the engine has a higher one.
        at: when it was true, in seconds; its age is counted from here.
        workflows: those that live there.
        anchors: agents whose anchors are there or are being warmed up, with the anchors' tokens.
        pending_tokens: prompt tokens that calls there still have to compute.
        running_calls: calls that generate.
        needed_tokens: what the contexts of its workflows amount to, anchors counted once.
        capacity_tokens: of its device pool.
        draining: takes no new workflow, and those that are there leave.
        prefill_token_s, running_call_s: what work costs there, see `work_rates.costs_of`; 0: not measured yet.
    """

    engine: str
    version: int
    at: float
    workflows: Mapping[str, Resident] = field(default_factory=dict)
    anchors: Mapping[str, int] = field(default_factory=dict)
    pending_tokens: int = 0
    running_calls: int = 0
    needed_tokens: int = 0
    capacity_tokens: int = 1
    draining: bool = False
    prefill_token_s: float = 0.0
    running_call_s: float = 0.0
