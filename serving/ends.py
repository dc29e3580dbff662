"""Tells engines which of their workflows are over, whatever becomes of the engines meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cache_actor.workflows import EndReason, Workflow

logger = logging.getLogger("forecache")

# An engine that takes longer is not well; others' ends do not wait for it. In seconds.
TELL_LIMIT_S = 5.0
# All ways in which a handle says that an engine does not answer: it is gone, full, being replaced, or it has failed.
ENGINE_LOST = (RayError, RayServeException, TimeoutError)


async def tell_ends(
    ended: asyncio.Queue[tuple[str, str, str]], tell: Callable[[str, dict[str, str]], Awaitable[None]]
) -> None:
    """Passes on (engine, workflow, how it ended) for ever, one after the other.

    An end that an engine cannot be told is dropped: an engine that is gone has forgotten its workflows, and one that
    lives lets those without calls go by age.
    """
    while True:
        engine, workflow, how = await ended.get()
        try:
            async with asyncio.timeout(TELL_LIMIT_S):
                await tell(engine, {workflow: how})
        except ENGINE_LOST as error:
            logger.warning("forecache: engine %s was not told of an end (%s)", engine, type(error).__name__)


_HOW = {EndReason.FINAL: "final", EndReason.REQUESTED: "deleted"}


def end_to_tell(workflow: Workflow | None) -> str | None:
    """How its client has ended a workflow, as `SyncReport.ended` has it; None if nobody has.

    Who is idle the engine finds out by itself: it hears calls that come by other ingresses, too.
    """
    return None if workflow is None or workflow.end_reason is None else _HOW.get(workflow.end_reason)
