"""Snapshots on their way to routers: of an engine only what has changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cache_actor.codec import MessageError
from cache_actor.messages import decode, encode
from cache_actor.snapshot_messages import EngineDelta, SnapshotDelta
from cache_actor.snapshots import EngineSnapshot, Resident


class SnapshotEncoder:
    """Makes deltas, the same ones for every receiver; one that is new, or has missed one, is sent `whole` first."""

    def __init__(self) -> None:
        self._told: dict[str, EngineSnapshot] = {}
        self._number = 0

    def delta(self, snapshots: Iterable[EngineSnapshot], gone: Iterable[str] = ()) -> bytes:
        """What is new: snapshots of engines, one of each, and engines that are gone."""
        lost = [engine for engine in gone if self._told.pop(engine, None) is not None]
        engines = []
        for snapshot in snapshots:
            engines.append(_difference(self._told.get(snapshot.engine), snapshot))
            self._told[snapshot.engine] = snapshot
        self._number += 1
        return encode(SnapshotDelta(self._number, False, engines, lost))

    def whole(self) -> bytes:
        """All that was told so far; the next delta follows on it."""
        return encode(SnapshotDelta(self._number, True, [_difference(None, one) for one in self._told.values()], []))


class SnapshotDecoder:
    """Makes snapshots of deltas again."""

    def __init__(self) -> None:
        self._known: dict[str, EngineSnapshot] = {}
        self._number: int | None = None

    def apply(self, data: bytes) -> tuple[list[EngineSnapshot], list[str]] | None:
        """The snapshots that are new, and the engines that were gone before; None if a delta is missing: ask for all.

        Raises:
            MessageError: bytes that are none of this version's.
        """
        delta = _read(data)
        if delta.whole:
            lost = [engine for engine in self._known if engine not in {one.engine for one in delta.engines}]
            self._known = {}
        elif self._number is None or delta.number != self._number + 1:
            self._number = None
            return None
        else:
            lost = [engine for engine in delta.gone if self._known.pop(engine, None) is not None]
        self._number = delta.number
        snapshots = [_applied(self._known.get(one.engine), one) for one in delta.engines]
        self._known |= {one.engine: one for one in snapshots}
        return snapshots, lost


def _difference(before: EngineSnapshot | None, now: EngineSnapshot) -> EngineDelta:
    workflows: Mapping[str, Resident] = {} if before is None else before.workflows
    anchors: Mapping[str, int] = {} if before is None else before.anchors
    return EngineDelta(
        now.engine,
        now.version,
        now.at,
        {name: _packed(there) for name, there in now.workflows.items() if workflows.get(name) != there},
        [name for name in workflows if name not in now.workflows],
        {agent: tokens for agent, tokens in now.anchors.items() if anchors.get(agent) != tokens},
        [agent for agent in anchors if agent not in now.anchors],
        now.pending_tokens,
        now.running_calls,
        now.needed_tokens,
        now.capacity_tokens,
        now.draining,
    )


def _applied(before: EngineSnapshot | None, delta: EngineDelta) -> EngineSnapshot:
    workflows = {} if before is None else dict(before.workflows)
    anchors = {} if before is None else dict(before.anchors)
    for name in delta.workflows_gone:
        workflows.pop(name, None)
    for agent in delta.anchors_gone:
        anchors.pop(agent, None)
    return EngineSnapshot(
        delta.engine,
        delta.version,
        delta.at,
        workflows | {name: _unpacked(said) for name, said in delta.workflows.items()},
        anchors | delta.anchors,
        delta.pending_tokens,
        delta.running_calls,
        delta.needed_tokens,
        delta.capacity_tokens,
        delta.draining,
    )


def _packed(there: Resident) -> list[int]:
    said = [there.device, there.host, there.coming]
    while said and not said[-1]:
        said.pop()
    return said


def _unpacked(said: list[int]) -> Resident:
    if len(said) > 3:
        raise MessageError(f"a workflow's tokens are at most three numbers, not {len(said)}")
    return Resident(*[*said, 0, 0, 0][:3])


def _read(data: bytes) -> SnapshotDelta:
    said = decode(data)
    if not isinstance(said, SnapshotDelta):
        raise MessageError(f"a SnapshotDelta was expected, not {type(said).__name__}")
    return said
