"""Work that is to be done again and again, whatever became of it the last time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("forecache")


async def every(period_s: float, work: Callable[[], object]) -> None:
    """For ever: what fails once, with a router of somebody's own say, is done the next time all the same."""
    while True:
        await asyncio.sleep(period_s)
        try:
            work()
        except Exception:
            logger.exception("forecache: %s failed", work.__name__)
