"""What the front tells operators, and what they can switch, while it serves. `Ingress` is made of it.

Without `from __future__ import annotations`, as `serving.ingress`.
"""

import asyncio
import contextlib
import logging
from typing import Any

from fastapi import Request
from ray.serve.handle import DeploymentHandle

from cache_actor.planner import MODES
from serving.admission import Admission
from serving.calls import EngineQuery
from serving.config import AppConfig
from serving.ends import ENGINE_LOST
from serving.engine_calls import EngineCalls
from serving.errors import ApiError, invalid_request
from serving.http import new_api, read_json
from serving.naming import clean_id
from serving.router_switch import RouterSwitch
from serving.routing_table import RoutingTable

logger = logging.getLogger("forecache")

_COORDINATOR_LIMIT_S = 5.0
_ENGINE_LIMIT_S = 5.0
CACHE_QUESTIONS = ("figures", "dump", "check")

api = new_api()


class OperatorApi:
    """Engines, coordinator, admission and router."""

    _config: AppConfig
    _queries: DeploymentHandle
    _coordinator: DeploymentHandle | None
    _table: RoutingTable
    _router: RouterSwitch
    _calls: EngineCalls
    _door: Admission

    @api.get("/v1/engines")
    async def engines(self) -> dict[str, Any]:
        # One after the other: Ray 2.60 tells requests apart by an id that all calls made for one HTTP request share,
        # and of two that wait for their engine at once it forgets one.
        found: dict[str, dict[str, Any]] = {}
        for engine in self._table.engines():
            with contextlib.suppress(*ENGINE_LOST):  # it went in this moment, or is stuck
                async with asyncio.timeout(_ENGINE_LIMIT_S):
                    answer = await self._queries.status.remote(EngineQuery(engine))
                found[answer["id"]] = answer  # by its id: for one that is gone another answers
        load = self._table.load()
        data = [{**answer, "workflows": load.get(engine, 0)} for engine, answer in sorted(found.items())]
        return {"object": "list", "data": data}

    @api.post("/v1/engines/{engine}")
    async def drain_engine(self, engine: str, request: Request) -> dict[str, Any]:
        self._check_engine(engine)
        draining = (await read_json(request, self._config.limits.max_body_bytes)).get("draining")
        if not isinstance(draining, bool):
            raise invalid_request(f"draining cannot be {draining!r}; choose from true, false", param="draining")
        answer: dict[str, Any] = await self._ask_engine(self._queries.drain, engine, draining)
        return answer

    @api.get("/v1/engines/{engine}/cache")
    async def cache(self, engine: str, what: str = "dump") -> dict[str, Any]:
        self._check_engine(engine)
        if what not in CACHE_QUESTIONS:
            raise invalid_request(f"what cannot be {what!r}; choose from {', '.join(CACHE_QUESTIONS)}", param="what")
        answer: dict[str, Any] = await self._ask_engine(self._queries.ask, engine, what)
        return answer

    @api.get("/v1/coordinator")
    async def coordinator(self) -> dict[str, Any]:
        status: dict[str, Any] = await self._ask_coordinator("status")
        return status

    @api.post("/v1/coordinator")
    async def switch_coordinator(self, request: Request) -> dict[str, Any]:
        mode = (await read_json(request, self._config.limits.max_body_bytes)).get("mode")
        if mode not in MODES:
            raise invalid_request(f"mode cannot be {mode!r}; choose from {', '.join(MODES)}", param="mode")
        return {"mode": await self._ask_coordinator("switch", mode)}

    @api.get("/v1/coordinator/workflows")
    async def forecasts(self, limit: int = 20) -> dict[str, Any]:
        if not 1 <= limit <= 1000:
            raise invalid_request(f"limit cannot be {limit}; it is from 1 to 1000", param="limit")
        return {"object": "list", "data": await self._ask_coordinator("workflows", limit)}

    @api.get("/v1/coordinator/workflows/{workflow_id:path}")
    async def why(self, workflow_id: str) -> dict[str, Any]:
        found: dict[str, Any] | None = await self._ask_coordinator("workflow", clean_id(workflow_id) or workflow_id)
        if found is None:
            raise ApiError(
                404, f"the coordinator knows no workflow {workflow_id!r}", "workflow_not_found", "workflow_id"
            )
        return found

    @api.get("/v1/admission")
    async def admission(self) -> dict[str, Any]:
        return self._door.status()

    @api.post("/v1/admission")
    async def switch_admission(self, request: Request) -> dict[str, Any]:
        mode = (await read_json(request, self._config.limits.max_body_bytes)).get("mode")
        if mode not in ("on", "off") and (isinstance(mode, bool) or not isinstance(mode, int) or mode < 1):
            reason = f"mode cannot be {mode!r}; choose from on, off, or a number of workflows, at least 1"
            raise invalid_request(reason, param="mode")
        self._door.switch(mode)
        logger.warning("forecache: admission is switched to %s", mode)
        return self._door.status()

    @api.get("/v1/router")
    async def router(self) -> dict[str, Any]:
        return self._table.status()

    @api.post("/v1/router")
    async def switch_router(self, request: Request) -> dict[str, Any]:
        self._router.switch(await read_json(request, self._config.limits.max_body_bytes))
        return self._table.status()

    def _check_engine(self, engine: str) -> None:
        if engine not in self._table.engines():
            raise ApiError(404, f"there is no engine {engine!r}", "engine_not_found", "engine")

    async def _ask_engine(self, method: Any, engine: str, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(_ENGINE_LIMIT_S):
                return await method.remote(EngineQuery(engine), *arguments)
        except ENGINE_LOST as error:
            raise self._calls.down(f"it does not answer ({type(error).__name__})") from error

    async def _ask_coordinator(self, what: str, *arguments: Any) -> Any:
        if self._coordinator is None:
            reason = "there is no coordinator: coordinator.enabled is false, or cache.backend is sglang"
            raise ApiError(404, reason, "no_coordinator")
        try:
            async with asyncio.timeout(_COORDINATOR_LIMIT_S):
                return await getattr(self._coordinator, what).remote(*arguments)
        except ENGINE_LOST as error:
            raise ApiError(
                503,
                f"the coordinator does not answer ({type(error).__name__}); engines go on without it",
                "coordinator_unavailable",
                retry_after_s=self._config.limits.retry_after_s,
            ) from error
