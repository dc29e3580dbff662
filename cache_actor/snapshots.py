"""What routers are told of engines: snapshots, and the view of the cluster that they make up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        needed_tokens: what the latest contexts of its workflows' agents amount to, anchors counted once.
        capacity_tokens: of its device pool.
        draining: takes no new workflow, and those that are there leave.
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

    @property
    def pressure(self) -> float:
        """Above 1 its workflows do not all fit."""
        return self.needed_tokens / max(1, self.capacity_tokens)


class ClusterView:
    """The newest snapshot of each engine."""

    def __init__(self) -> None:
        self._snapshots: dict[str, EngineSnapshot] = {}

    def put(self, snapshot: EngineSnapshot) -> None:
        """Takes a snapshot in; one that is older than what is known is left out."""
        known = self._snapshots.get(snapshot.engine)
        if known is None or snapshot.version > known.version:
            self._snapshots[snapshot.engine] = snapshot

    def get(self, engine: str) -> EngineSnapshot | None:
        return self._snapshots.get(engine)

    def drop(self, engine: str) -> None:
        """The engine is gone."""
        self._snapshots.pop(engine, None)

    def keep(self, engines: Iterable[str]) -> None:
        """Only these engines are left."""
        wanted = set(engines)
        self._snapshots = {name: one for name, one in self._snapshots.items() if name in wanted}

    def fresh(self, now: float, stale_s: float) -> list[EngineSnapshot]:
        """Snapshots that are at most `stale_s` old, by the engines' names."""
        return [one for _, one in sorted(self._snapshots.items()) if now - one.at <= stale_s]
