"""Where routers wait for the next word on engines: the coordinator's side, with the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from cache_actor.snapshot_deltas import SnapshotEncoder
from cache_actor.snapshots import EngineSnapshot

# How often engines are looked at while anybody listens, in seconds.
PERIOD_S = 0.2
# Nobody listens any more when nobody has asked for so long, in seconds.
SILENCE_S = 5.0


class SnapshotDesk:
    """Answers each router when there is something that it has not heard. To be made in a running event loop.

    Args:
        look: how all engines are at a time, in seconds since 1970.
    """

    def __init__(self, look: Callable[[float], Iterable[EngineSnapshot]]) -> None:
        self._look = look
        # Beyond the numbers of a coordinator that was here before, whose deltas nothing here follows on.
        self._encoder = SnapshotEncoder(int(1000 * time.time()))
        self._asked_at = 0.0
        self._wanted = asyncio.Event()
        self._told = asyncio.Event()

    async def after(self, number: int) -> bytes:
        """The `SnapshotDelta` that follows on a number."""
        self._asked_at = time.monotonic()
        self._wanted.set()
        while (delta := self._encoder.after(number)) is None:
            await self._told.wait()
        return delta

    async def run(self) -> None:
        """For ever; does nothing while nobody listens."""
        while True:
            await self._wanted.wait()
            if time.monotonic() - self._asked_at > SILENCE_S:
                self._wanted.clear()
                continue
            now = time.time()
            self._encoder.tell(self._look(now), now)
            told, self._told = self._told, asyncio.Event()
            told.set()
            await asyncio.sleep(PERIOD_S)
