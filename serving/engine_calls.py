"""A call on its way from the ingress to an engine, and every way in which that can fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from serving.calls import SSE, EngineCall, Reply
from serving.config import LimitsConfig
from serving.errors import ApiError, engine_down
from serving.placement import Placement

logger = logging.getLogger("forecache")


class EngineCalls:
    """Sends calls over a handle of the engines' deployment."""

    def __init__(self, engines: DeploymentHandle, placement: Placement, limits: LimitsConfig) -> None:
        self._engines = engines.options(stream=True)
        self._placement = placement
        self._limits = limits

    async def parts(self, call: EngineCall) -> AsyncGenerator[Reply | bytes, None]:
        """What the engine says; every way in which it can fail to is an `ApiError`."""
        response = self._engines.call.remote(call)
        parts = aiter(response)
        finished = False
        try:
            reply = await self._first(anext(parts))
            finished = reply.media_type != SSE
            yield reply
            async for part in parts:
                yield part
            finished = True
        except BackPressureError as error:
            raise self.overloaded("every engine is busy and the queue is full") from error
        except (RayActorError, DeploymentUnavailableError) as error:
            raise self.down(f"it was lost while it answered ({type(error).__name__})") from error
        except (RequestCancelledError, TaskCancelledError) as error:
            raise self.down("the call was cancelled by the server") from error
        except RayError as error:
            logger.exception("forecache: call %s failed", call.rid)
            raise ApiError(500, "the engine failed to answer; the log of the ingress has the reason") from error
        finally:
            if not finished:
                response.cancel()

    def overloaded(self, reason: str) -> ApiError:
        return ApiError(429, reason, "overloaded", retry_after_s=self._limits.retry_after_s)

    def down(self, reason: str) -> ApiError:
        return engine_down(reason, self._limits.retry_after_s)

    async def _first(self, coming: Any) -> Reply:
        """The first part; an error when there is still no engine after a while."""
        task = asyncio.ensure_future(coming)
        # A client that leaves takes nobody along who would look at how the task ended.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._limits.engine_wait_s)
                if not task.done() and not self._placement.engines():
                    raise self.down("none is running")
            return task.result()  # type: ignore[no-any-return]
        finally:
            task.cancel()
