"""An ingress hears from the coordinator how engines are. Calls never wait for any of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from cache_actor.codec import MessageError
from cache_actor.messages import encode
from cache_actor.snapshot_deltas import SnapshotDecoder
from cache_actor.snapshot_messages import SnapshotsAsked
from cache_actor.snapshots import EngineSnapshot

logger = logging.getLogger("forecache")


class SnapshotFeed:
    """One ingress's end of it: asks for what has changed again and again, for ever.

    Args:
        ask: the coordinator: a message, and its answer. It answers when there is something new, several times a second.
        see: told all that is new, times on the clock of `time.time`. May not take long.
        answer_limit_s: an answer that takes longer is not waited for.
        retry_s: after a failure the coordinator is asked again in so many seconds.

    Attributes:
        counts: of answers, and of questions without one.
    """

    def __init__(
        self,
        ask: Callable[[bytes], Awaitable[bytes]],
        see: Callable[[Iterable[EngineSnapshot]], None],
        answer_limit_s: float = 3.0,
        retry_s: float = 0.5,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ask = ask
        self._see = see
        self._answer_limit_s = answer_limit_s
        self._retry_s = retry_s
        self._decoder = SnapshotDecoder()

    async def run(self) -> None:
        """For ever. Whatever happens to the coordinator, it is asked again; meanwhile what it said grows stale."""
        silent = False
        while True:
            try:
                async with asyncio.timeout(self._answer_limit_s):
                    data = await self._ask(encode(SnapshotsAsked(self._decoder.number)))
                heard = self._decoder.apply(data, time.time())
                if heard is None:
                    raise MessageError("a delta that does not follow on what was heard before")
                self.counts["answers"] += 1
                silent = False
                self._see(heard[0])
            except Exception as error:  # the coordinator is not there, or not well
                self.counts["unanswered"] += 1
                if not silent:
                    reason = f"{type(error).__name__}: {str(error)[:200]}"
                    logger.warning("forecache: the coordinator says nothing of engines (%s)", reason)
                silent = True
                await asyncio.sleep(self._retry_s)
