"""An ingress's talk with the coordinator: who is in and who waits up, limits down. Calls never wait for any of it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport
from cache_actor.codec import MessageError
from cache_actor.messages import decode, encode

logger = logging.getLogger("forecache")


class LimitsFeed:
    """One ingress's end of it: asks for limits again and again, for ever.

    Args:
        ask: the coordinator: a message, and its answer.
        report: how things stand at the gate, under a number that grows.
        apply: told every answer. Neither may take long.
        period_s: between two questions while anybody is held or paused, or any engine has a limit; `idle_s` otherwise.
        answer_limit_s: an answer that takes longer is not waited for.
        stale_s: the latest answer is `stale` after so long; above `period_s` and `idle_s`. All are seconds.

    Attributes:
        counts: of answers, and of questions without one.
    """

    def __init__(
        self,
        ask: Callable[[bytes], Awaitable[bytes]],
        report: Callable[[], AdmissionReport],
        apply: Callable[[AdmissionAnswer], None],
        period_s: float = 0.5,
        idle_s: float = 1.0,
        answer_limit_s: float = 3.0,
        stale_s: float = 10.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ask_coordinator = ask
        self._report = report
        self._apply = apply
        self._period_s, self._idle_s = period_s, idle_s
        self._answer_limit_s, self._stale_s = answer_limit_s, stale_s
        self._answered_at = -math.inf
        self._silent = False

    @property
    def stale(self) -> bool:
        """Whether there is nothing to go by: no answer has come yet, or the latest is too old."""
        return time.monotonic() - self._answered_at > self._stale_s

    async def run(self) -> None:
        """For ever. Whatever happens to the coordinator, it is asked again."""
        while True:
            busy = False
            try:
                busy = await self._ask()
            except Exception:  # an ingress that serves must not stop asking for good
                logger.exception("forecache: limits were not asked for")
            await asyncio.sleep(self._period_s if busy else self._idle_s)

    async def _ask(self) -> bool:
        """One report and its answer; whether the next should come soon."""
        report = self._report()
        busy = bool(report.paused or any(report.held.values()))
        try:
            async with asyncio.timeout(self._answer_limit_s):
                answer = decode(await self._ask_coordinator(encode(report)))
            if not isinstance(answer, AdmissionAnswer):
                raise MessageError(f"an AdmissionAnswer was expected, not {type(answer).__name__}")
        except Exception as error:  # the coordinator is not there, or not well
            self._missed(error)
            return busy
        self.counts["answers"] += 1
        self._answered_at, self._silent = time.monotonic(), False
        self._apply(answer)
        return busy or any(limit is not None for limit in answer.limits.values())

    def _missed(self, error: Exception) -> None:
        self.counts["unanswered"] += 1
        if self.stale and not self._silent:
            self._silent = True
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            logger.warning("forecache: the coordinator says nothing of limits (%s)", reason)
