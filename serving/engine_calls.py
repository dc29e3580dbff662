"""A call on its way from the ingress to an engine, and every way in which that can fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from serving.calls import SSE, EngineCall, Reply
from serving.config import LimitsConfig
from serving.errors import ApiError, engine_down
from serving.routing_table import RoutingTable

logger = logging.getLogger("forecache")


class EngineCalls:
    """Sends calls over a handle of the engines' deployment, each to the engine that the table names.

    An engine that is lost is left out at the first error. A call of which nothing has been passed on yet is sent once
    more, to another engine if there is one: generating text changes nothing, so it may be done twice.
    """

    def __init__(self, engines: DeploymentHandle, table: RoutingTable, limits: LimitsConfig) -> None:
        self._engines = engines.options(stream=True)
        self._table = table
        self._limits = limits

    async def parts(self, call: EngineCall) -> AsyncGenerator[Reply | bytes, None]:
        """What the engine says; every way in which it can fail to is an `ApiError`."""
        begun = False
        try:
            for attempt in range(2):
                if attempt:
                    self._table.retried()
                try:
                    async with contextlib.aclosing(self._parts(call)) as parts:
                        async for part in parts:
                            begun = True
                            yield part
                        return
                except _LostError as error:
                    lost = error
                    if begun or not self._table.engines():
                        break
            if lost.reply is None:
                raise self.down(f"it was lost while it answered ({lost})") from lost.__cause__
            yield lost.reply
        finally:
            self._table.over(call)

    async def _parts(self, call: EngineCall) -> AsyncGenerator[Reply | bytes, None]:
        """What the engine says to a call that is sent once."""
        decision = self._table.decide(call)
        response = self._engines.call.remote(call)
        parts = aiter(response)
        finished = False
        try:
            reply = await self._first(anext(parts))
            finished = reply.media_type != SSE
            if reply.lost:
                self._leave(call)
                raise _LostError("it says so", reply)
            # Serve has asked again if there was no engine when it was sent, or that one could not be reached.
            decision = self._table.begun(call, reply.prompt_tokens) or decision
            yield replace(reply, route="" if decision is None else decision.why)
            async for part in parts:
                yield part
            finished = True
        except BackPressureError as error:
            raise self.overloaded("every engine is busy and the queue is full") from error
        except RayActorError as error:
            self._leave(call)
            raise _LostError(type(error).__name__) from error
        except DeploymentUnavailableError as error:
            raise self.down(f"none can be started ({type(error).__name__})") from error
        except (RequestCancelledError, TaskCancelledError) as error:
            raise self.down("the call was cancelled by the server") from error
        except (RayError, RayServeException) as error:
            logger.exception("forecache: call %s failed", call.rid)
            raise ApiError(500, "the engine failed to answer; the log of the ingress has the reason") from error
        finally:
            if not finished:
                response.cancel()

    def _leave(self, call: EngineCall) -> None:
        """The engine of a call is lost."""
        if (engine := self._table.lost(call)) is not None:
            logger.warning("forecache: engine %s is lost to call %s", engine, call.rid)

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
                if not task.done() and not self._table.engines():
                    raise self.down("none is running")
            return task.result()  # type: ignore[no-any-return]
        finally:
            task.cancel()


class _LostError(Exception):
    """The engine of a call is no more; the message says how that was found, `reply` what the engine said itself."""

    def __init__(self, reason: str, reply: Reply | None = None) -> None:
        super().__init__(reason)
        self.reply = reply
