"""Ray Serve's request router over `serving.ingress_choice`: all requests of a workflow go to one ingress.

Serve makes the router in each of its HTTP proxies. It ships this module by value, so nothing here may be a global
that others look at.
"""

from __future__ import annotations

import logging
import pickle
import time

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serving.ingress_choice import PATIENCE_S, RequestKeys, Silence, ranks


class IngressRouter(RequestRouter):
    """Ray Serve's request router of ingresses. They are named by their replica's unique id."""

    # Serve's own tenth of a second is soon over on a busy machine, and a workflow would be at two ingresses.
    queue_len_response_deadline_s = PATIENCE_S

    def initialize_state(self, sources: list[tuple[str, str | None]]) -> None:
        self._keys = RequestKeys(sources)
        self._silence = Silence()
        self._reported = False

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._silence.keep({replica.replica_id.unique_id for replica in replicas})

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._silence.heard(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        # Without this Serve asks again at once, for ever, while every ingress is full.
        pending_request.routing_context.should_backoff = True
        if len(candidate_replicas) == 1:
            return [candidate_replicas]
        now = time.monotonic()
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        known, silent = set(), set()
        for name, replica in by_id.items():
            if self.replica_queue_len_cache.get(replica.replica_id) is not None:
                self._silence.heard(name)
                known.add(name)
            elif self._silence.silent(name, now):
                silent.add(name)
        chosen = ranks(self._key(pending_request), list(by_id), known, silent)
        for name in chosen[0] if chosen else ():
            if name not in known:
                self._silence.asked(name, now)
        return [[by_id[name] for name in rank] for rank in chosen]

    def _key(self, request: PendingRequest) -> str | None:
        """What a request is told apart by; None for one that is none of HTTP's."""
        try:
            if not request.metadata.is_http_request:
                return None
            return self._keys.key(pickle.loads(request.args[0]).asgi_scope)
        except Exception:  # in a routing task of Serve's an error would have the request wait for ever
            if not self._reported:
                self._reported = True
                logging.getLogger("ray.serve").exception("forecache: a request goes to any ingress")
            return None
