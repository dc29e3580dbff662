"""The OpenAI-compatible HTTP front: identity and lifecycle of workflows, limits, errors. No model code runs here.

Without `from __future__ import annotations`: Serve ships the FastAPI app by value, and there annotations that are
strings would not be found again.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import metrics
from starlette.requests import ClientDisconnect

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport
from cache_actor.messages import MAX_MESSAGE_BYTES, RequestIdentity
from cache_actor.workflows import State, Workflow, WorkflowRegistry
from serving.admission import Admission, Ticket
from serving.admission_metrics import AdmissionMetrics
from serving.calls import SSE, EngineCall, EngineQuery, Kind, Reply
from serving.config import AppConfig
from serving.conversations import ConversationIndex
from serving.ends import end_to_tell, tell_ends
from serving.engine_calls import EngineCalls
from serving.errors import ApiError, invalid_request
from serving.held_calls import answer
from serving.http import CallStream, identity_headers, read_json
from serving.identity import Identified, identify
from serving.limits_feed import LimitsFeed
from serving.link import Link
from serving.logs import log_through_serve
from serving.naming import clean_id
from serving.operator_api import OperatorApi, api
from serving.periodic import every
from serving.router_switch import RouterSwitch
from serving.routing_metrics import RoutingMetrics
from serving.routing_table import RoutingTable, routing_table
from serving.snapshot_feed import SnapshotFeed
from serving.workflow_view import ended_elsewhere, workflow_view

logger = logging.getLogger("forecache")

# Fields of SGLang's request classes that are between an orchestrator and its engines, never a client's.
_NOT_THE_CLIENTS = (
    "kv_hints",
    "rid",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "session_params",
)
_EXPIRE_PERIOD_S = 1.0
_REHOME_PERIOD_S = 0.25


@serve.ingress(api)
class Ingress(OperatorApi):
    """Holds the registry of its workflows: all calls that name one in their headers come here, see `ingress_router`."""

    def __init__(
        self, config: AppConfig, engines: DeploymentHandle, coordinator: DeploymentHandle | None = None
    ) -> None:
        log_through_serve()
        self._config = config
        self._id: str = serve.get_replica_context().replica_id.unique_id
        self._queries = engines
        self._coordinator = coordinator
        self._table: RoutingTable = routing_table(**config.routing_table())
        self._router = RouterSwitch(self._table, config.router.choices())
        engines._init()  # or Serve would make its router, which says what engines there are, with the first call
        self._calls = EngineCalls(engines, self._table, config.limits)
        self._door = Admission(
            config.admission,
            self._table.engines,
            config.limits.retry_after_s,
            self._id,
            AdmissionMetrics(metrics),
            alone=config.deployment.ingress_replicas == 1,
        )
        self._routing = RoutingMetrics(metrics)
        self._registry = WorkflowRegistry(config.identity.idle_timeout_s, config.identity.max_workflows)
        self._conversations = ConversationIndex(config.identity.max_conversations)
        self._created = int(time.time())
        self._inflight = 0
        self._ended: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        # Ends are told from a task of their own, not from within a request: see `engines`.
        works = [
            every(_EXPIRE_PERIOD_S, self._expire),
            every(_REHOME_PERIOD_S, self._rehome),
            tell_ends(self._ended, self._tell_end),
            self._door.run(),
        ]
        if coordinator is not None:
            link = Link(coordinator.address.remote, MAX_MESSAGE_BYTES)
            works.append(LimitsFeed(link.ask, self._report, self._hear).run())
            works.append(SnapshotFeed(link.ask, self._table.see).run())
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    @api.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        return await self._call("chat", request)

    @api.post("/v1/completions")
    async def completion(self, request: Request) -> Response:
        return await self._call("completion", request)

    @api.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._model()]}

    @api.get("/v1/models/{name:path}")
    async def model(self, name: str) -> dict[str, Any]:
        self._check_model(name)
        return self._model()

    @api.get("/health")
    async def health(self) -> Response:
        engines = self._table.engines()
        status = "ok" if engines else "no engine is running"
        return JSONResponse({"status": status, "engines": len(engines)}, status_code=200 if engines else 503)

    @api.get("/v1/workflows")
    async def workflows(self, state: str | None = None, limit: int = 1000) -> dict[str, Any]:
        if state is not None and state not in list(State):
            raise invalid_request(f"state cannot be {state!r}; choose from {', '.join(State)}", param="state")
        if limit < 1:
            raise invalid_request(f"limit cannot be {limit}; it is at least 1", param="limit")
        wanted = list(self._registry.workflows(State(state) if state else None))[-limit:]
        return {
            "object": "list",
            "ingress": self._id,
            "counts": self._registry.counts(),
            "data": [self._workflow(workflow) for workflow in wanted],
        }

    @api.get("/v1/workflows/{workflow_id:path}")
    async def workflow(self, workflow_id: str) -> dict[str, Any]:
        return self._workflow(self._known(workflow_id))

    @api.delete("/v1/workflows/{workflow_id:path}")
    async def end_workflow(self, workflow_id: str) -> dict[str, Any]:
        name = clean_id(workflow_id) or workflow_id
        if name not in self._registry and (engine := await self._engine_of(name)):
            self._ended.put_nowait((engine, name, "deleted"))
            return ended_elsewhere(name, self._id, engine)
        workflow = self._known(workflow_id)
        self._registry.end(workflow.id, time.monotonic())
        self._release_ended()
        return self._workflow(workflow)

    def _report(self) -> AdmissionReport:
        return self._router.tell(self._door.report())

    def _hear(self, answer: AdmissionAnswer) -> None:
        self._door.apply(answer)
        self._router.hear(answer)

    async def _engine_of(self, workflow: str) -> str | None:
        """Where a workflow lives whose calls came by other ingresses: one that is gone, or since no header named it."""
        with contextlib.suppress(ApiError):  # the coordinator is not there
            found = await self._ask_coordinator("workflow", workflow)
            if found is not None and found["living"] and found["engine"] in self._table.engines():
                return str(found["engine"])
        return None

    async def _call(self, kind: Kind, request: Request) -> Response:
        request_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        headers = {"x-ingress-id": self._id}  # Serve's proxy adds x-request-id, the client's own if it sent one
        in_hand = self._inflight - self._door.waiting
        if in_hand >= self._config.limits.max_inflight_requests:
            error = self._calls.overloaded(f"the server has {in_hand} calls in hand, as many as it takes")
            return JSONResponse(error.body(), error.status, headers | error.headers())
        self._inflight += 1
        ticket: Ticket | None = None
        identity: RequestIdentity | None = None
        handed_over = False  # to a response that says itself when it is over
        try:
            body = self._clean(await read_json(request, self._config.limits.max_body_bytes))
            identified = identify(request.headers, body, self._config.identity, self._conversations)
            headers |= identity_headers(identified.identity)
            ticket = self._door.ask(identified.identity)
            identity = identified.identity
            self._begin(identified)
            call = EngineCall(kind, body, identity, request_id, identified.anchor)
            parts = answer(call, ticket, self._door, self._calls, self._config.admission.keep_alive_s)
            reply = await anext(parts)
            assert isinstance(reply, Reply)
            if reply.engine:  # a call that is still held has none
                headers |= {"x-engine-id": reply.engine, "x-forecache-queue-ms": str(ticket.queue_ms)}
            if reply.route:
                headers["x-forecache-route"] = reply.route
            if reply.retry_after_s is not None:
                headers["retry-after"] = str(reply.retry_after_s)
            if reply.media_type != SSE:
                await parts.aclose()
                return Response(reply.body, reply.status, headers, reply.media_type)
            handed_over = True
            return CallStream(reply, parts, headers, over=lambda: self._over(identity, ticket))
        except ApiError as error:
            return JSONResponse(error.body(), error.status, headers | error.headers())
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            if not handed_over:
                self._over(identity, ticket)

    def _clean(self, body: dict[str, Any]) -> dict[str, Any]:
        model = body.get("model")
        if not isinstance(model, str):
            raise invalid_request(f"model cannot be {model!r}; a string is needed", param="model")
        self._check_model(model)
        return {name: value for name, value in body.items() if name not in _NOT_THE_CLIENTS}

    def _check_model(self, name: str) -> None:
        served = self._config.model.served_name
        if name != served and not name.startswith(f"{served}:"):  # after the colon: a LoRA adapter, SGLang's to check
            raise ApiError(
                404, f"the model {name!r} does not exist; this server has {served!r}", "model_not_found", "model"
            )

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._config.model.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "forecache",
        }

    def _begin(self, identified: Identified) -> None:
        self._registry.begin_call(identified.identity, time.monotonic())
        if identified.identity.source == "inferred":
            self._conversations.remember(identified.conversation, identified.identity.workflow)
        self._release_ended()

    def _over(self, identity: RequestIdentity | None, ticket: Ticket | None) -> None:
        self._inflight -= 1
        if ticket is not None:
            self._door.leave(ticket)
        if identity is not None:
            self._registry.end_call(identity, time.monotonic())
            self._release_ended()
            workflow = self._registry.get(identity.workflow)
            if workflow is None or workflow.state is State.ENDED:  # it ended before its call had been placed
                self._table.release(identity.workflow)

    def _release_ended(self) -> None:
        for workflow_id in self._registry.take_ended():
            how = end_to_tell(self._registry.get(workflow_id))
            if how and (engine := self._table.engine_of(workflow_id)):
                self._ended.put_nowait((engine, workflow_id, how))
            self._table.release(workflow_id)
            self._door.over(workflow_id)

    def _expire(self) -> None:
        self._registry.expire(time.monotonic())
        self._release_ended()

    def _rehome(self) -> None:
        self._table.rehome()
        self._routing.show(self._table.totals())

    async def _tell_end(self, engine: str, workflows: dict[str, str]) -> None:
        await self._queries.end_workflows.remote(EngineQuery(engine), workflows)

    def _known(self, workflow_id: str) -> Workflow:
        workflow = self._registry.get(clean_id(workflow_id) or workflow_id)
        if workflow is None:
            raise ApiError(404, f"there is no workflow {workflow_id!r}", "workflow_not_found", "workflow_id")
        return workflow

    def _workflow(self, workflow: Workflow) -> dict[str, Any]:
        return workflow_view(workflow, self._id, self._table.engine_of(workflow.id), self._door.queued(workflow.id))
