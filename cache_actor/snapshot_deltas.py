"""Snapshots on their way to routers: of an engine only what has changed. Pure; times are parameters, in seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cache_actor.codec import MessageError
from cache_actor.messages import decode, encode
from cache_actor.snapshot_messages import EngineDelta, SnapshotDelta
from cache_actor.snapshots import EngineSnapshot, Resident

# Deltas that a receiver may be behind before it is told the whole.
DELTAS_KEPT = 16


class SnapshotEncoder:
    """Makes deltas, the same ones for every receiver; one that is new, or has missed too many, is told the whole.

    Args:
        number: of the first delta; beyond those of an encoder whose receivers are to be told the whole.
    """

    def __init__(self, number: int = 0) -> None:
        self._told: dict[str, EngineSnapshot] = {}
        self._number = number
        self._made_at = 0.0
        self._latest: deque[bytes] = deque(maxlen=DELTAS_KEPT)

    def tell(self, snapshots: Iterable[EngineSnapshot], now: float) -> bytes:
        """How all engines are, one snapshot of each; the delta. Engines without one are gone."""
        told = {one.engine: one for one in snapshots}
        lost = [engine for engine in self._told if engine not in told]
        engines = [_difference(self._told.get(engine), one) for engine, one in told.items()]
        self._told = told
        self._number, self._made_at = self._number + 1, now
        self._latest.append(encode(SnapshotDelta(self._number, now, False, engines, lost)))
        return self._latest[-1]

    def after(self, number: int) -> bytes | None:
        """What follows for a receiver that has heard of so many: the next delta, or the whole; None: nothing yet."""
        behind = self._number - number
        if not behind or not self._latest:
            return None
        if 0 < behind <= len(self._latest):
            return self._latest[-behind]
        whole = [_difference(None, one) for one in self._told.values()]
        return encode(SnapshotDelta(self._number, self._made_at, True, whole, []))


class SnapshotDecoder:
    """Makes snapshots of deltas again.

    Attributes:
        number: of the latest delta; -1: there is none to follow on.
    """

    def __init__(self) -> None:
        self._known: dict[str, EngineSnapshot] = {}
        self.number = -1

    def apply(self, data: bytes, now: float) -> tuple[list[EngineSnapshot], list[str]] | None:
        """The snapshots that are new, `at` on the clock of `now`, and the engines that are gone; None if a delta is
        missing: ask for the whole.

        Raises:
            MessageError: bytes that are none of this version's.
        """
        delta = _read(data)
        if delta.whole:
            named = {one.engine for one in delta.engines}
            lost = [engine for engine in self._known if engine not in named]
            self._known = {}
        elif self.number < 0 or delta.number != self.number + 1:
            self.number = -1
            return None
        else:
            lost = [engine for engine in delta.gone if self._known.pop(engine, None) is not None]
        self.number = delta.number
        snapshots = [_applied(self._known.get(one.engine), one) for one in delta.engines]
        self._known |= {one.engine: one for one in snapshots}
        ahead = now - delta.made_at
        return [replace(one, at=one.at + ahead) for one in snapshots], lost


def _difference(before: EngineSnapshot | None, now: EngineSnapshot) -> EngineDelta:
    workflows: Mapping[str, Resident] = {} if before is None else before.workflows
    anchors: Mapping[str, int] = {} if before is None else before.anchors
    changed = {
        name: _packed(there)
        for name, there in now.workflows.items()
        if (known := workflows.get(name)) is not there and known != there
    }
    return EngineDelta(
        now.engine,
        now.version,
        now.at,
        changed,
        [name for name in workflows if name not in now.workflows],
        {agent: tokens for agent, tokens in now.anchors.items() if anchors.get(agent) != tokens},
        [agent for agent in anchors if agent not in now.anchors],
        now.pending_tokens,
        now.running_calls,
        now.needed_tokens,
        now.capacity_tokens,
        now.draining,
        now.prefill_token_s,
        now.running_call_s,
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
        delta.prefill_token_s,
        delta.running_call_s,
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
