"""Ray Serve's request router of the engines' handle: it sends each call to the engine that the routing table names.

Serve makes the router in the process that holds the handle, which is the ingress; the two share a table by its name.
Serve ships this module by value, so nothing here may be a global that others look at: that is in
`serving.routing_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serving.calls import EngineCall, EngineQuery
from serving.routing_table import routing_table


class EngineRouter(RequestRouter):
    """Engines are named by their replica's unique id."""

    def initialize_state(self, table: str, router: str, parameters: dict[str, Any], max_workflows: int) -> None:
        self._table = routing_table(table, router, parameters, max_workflows)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._table.set_engines(replica.replica_id.unique_id for replica in replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._table.set_engines(replica.unique_id for replica in self.curr_replicas)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """It may be back soon, or its node is dead and nobody knows yet: without this, Serve asks for an engine again
        and again until that is known, and gets this one."""
        super().on_replica_actor_unavailable(replica_id)
        self._table.drop_engine(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        # Without this Serve asks again at once, for ever, while the engine of the workflow is full.
        pending_request.routing_context.should_backoff = True
        by_engine = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        chosen = self._chosen(pending_request.args[0], by_engine)
        return [[chosen]] if chosen is not None else [candidate_replicas]

    def _chosen(self, target: Any, by_engine: Mapping[str, RunningReplica]) -> RunningReplica | None:
        if isinstance(target, EngineQuery):  # of one that is lost, another answers: nobody waits for its end
            return by_engine.get(target.engine) if target.engine in self._table.engines() else None
        if not isinstance(target, EngineCall) or (decision := self._table.decide_again(target)) is None:
            return None
        return by_engine.get(decision.engine)
