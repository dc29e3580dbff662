"""Tells engines which of their workflows are over, whatever becomes of the engines meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

logger = logging.getLogger("forecache")

# All ways in which a handle says that an engine does not answer: it is gone, full, being replaced, or it has failed.
ENGINE_LOST = (RayError, RayServeException, TimeoutError)


async def tell_ends(ended: asyncio.Queue[tuple[str, str]], tell: Callable[[str, list[str]], Awaitable[None]]) -> None:
    """Passes on (engine, workflow) pairs for ever, one after the other.

    An end that an engine cannot be told is dropped: an engine that is gone has forgotten its workflows, and one that
    lives lets those without calls go by age.
    """
    while True:
        engine, workflow = await ended.get()
        try:
            await tell(engine, [workflow])
        except ENGINE_LOST as error:
            logger.warning("forecache: engine %s was not told of an end (%s)", engine, type(error).__name__)
