"""Ray Serve's request router over a `Placement`: all calls of a workflow go to one engine.

Serve makes the router in the process that holds the handle, which is the ingress; the two share a placement by its
name. Serve ships this module by value, so nothing here may be a global that others look at: that is in
`serving.placement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serving.calls import EngineCall, EngineQuery
from serving.placement import placement_named


class WorkflowRouter(RequestRouter):
    """Ray Serve's request router over a `Placement`. Engines are named by their replica's unique id."""

    def initialize_state(self, placement: str, overload_bound: float, max_workflows: int) -> None:
        self._placement = placement_named(placement, overload_bound, max_workflows)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._placement.set_engines(replica.replica_id.unique_id for replica in replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._placement.drop_engine(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        # Without this Serve asks again at once, for ever, while the engine of the workflow is full.
        pending_request.routing_context.should_backoff = True
        by_engine = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        chosen = by_engine.get(self._engine_for(pending_request.args[0], by_engine) or "")
        return [[chosen]] if chosen is not None else [candidate_replicas]

    def _engine_for(self, target: Any, by_engine: Mapping[str, RunningReplica]) -> str | None:
        if isinstance(target, EngineQuery):
            return target.engine
        if not isinstance(target, EngineCall):
            return None
        calls = {
            engine: self.replica_queue_len_cache.get(replica.replica_id) or 0 for engine, replica in by_engine.items()
        }
        tagged = target.identity.source != "inferred"
        return self._placement.place(target.identity.workflow, target.anchor, tagged, calls, target.wanted)
