"""Belady's order, as far as a tree and an open future allow: what is used farthest in the future goes first.

When a call comes depends on the cache, so next uses are taken from a first pass under LRU: a workflow that runs goes on
at the pace that it had there, one that has not begun begins when it did there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from cache_actor.policies.base import Key
from serving.benchmark.replay.request import Request
from serving.benchmark.workloads import Segment, Workflow, Workload
from serving.sglang_plugin.cache import ForecacheCache
from serving.sglang_plugin.reuse import Tier

# The order is worked out anew after so much time, in seconds.
REFRESH_S = 0.05

Times = dict[tuple[str, int], float]


class Future:
    """Which calls use which prefix, and when.

    Args:
        times: when each call (workflow, index) was sent in the first pass; what is absent was not.
    """

    def __init__(self, workload: Workload, times: Times) -> None:
        self._times = times
        self._ids: dict[tuple[int, Segment], int] = {}
        self._paths: dict[tuple[str, int], tuple[np.ndarray[Any, Any], list[int]]] = {}
        users: dict[int, list[tuple[float, str, int]]] = defaultdict(list)
        for workflow in workload.workflows:
            for index, call in enumerate(workflow.calls):
                place, path, length, ends = 0, [], 0, []
                for segment in call.prompt:
                    place = self._ids.setdefault((place, segment), len(self._ids) + 1)
                    length += segment.tokens
                    path.append(place)
                    ends.append(length)
                    users[place].append((times.get((workflow.id, index), math.inf), workflow.id, index))
                self._paths[workflow.id, index] = np.array(ends), path
        self._users = {place: sorted(calls) for place, calls in users.items()}
        self._passed: dict[int, int] = defaultdict(int)
        self._next: dict[str, tuple[int, float]] = {}  # of each workflow that has begun: its next call, and its delay

    def sent(self, workflow: Workflow, index: int, now: float) -> None:
        """The call is made now: what comes after it is later, or earlier, by as much as this one is."""
        self._next[workflow.id] = index, now - self._times.get((workflow.id, index), now)

    def matched(self, request: Request) -> None:
        """The call has found its prefix: until now it was a use to come, of all the nearest."""
        _, delay = self._next[request.workflow.id]
        self._next[request.workflow.id] = request.index + 1, delay

    def bounds(self, request: Request) -> list[int]:
        """Where the segments of a call's prompt end, in tokens."""
        ends: list[int] = self._paths[request.workflow.id, request.index][0].tolist()
        return ends

    def places(self, request: Request, ends: list[int]) -> list[int | None]:
        """The prefixes of a call that end at or after these token positions, None beyond its prompt."""
        bounds, path = self._paths[request.workflow.id, request.index]
        found = np.searchsorted(bounds, ends)
        return [path[place] if place < len(path) else None for place in found]

    def next_use(self, place: int | None, now: float) -> float:
        """When the prefix is used next; infinity if never."""
        if place is None:
            return math.inf
        users = self._users[place]
        first = self._passed[place]
        while first < len(users) and users[first][2] < self._next.get(users[first][1], (0, 0.0))[0]:
            first += 1
        self._passed[place] = first
        best = math.inf
        for sent, workflow, index in users[first : first + 32]:
            following, delay = self._next.get(workflow, (0, 0.0))
            if index >= following:
                best = min(best, max(now, sent + delay))
        return best


class ClairvoyantCache(ForecacheCache):
    """The cache with the future for a policy, on both tiers.

    Nodes are cut where the prompt's segments end: another call may use a part of a node, and only that is kept for it.
    Of a victim no more leaves than is asked for.
    """

    future: Future

    @property
    def piecewise(self) -> bool:
        return True

    def split_node(self, node: Any, tokens: int) -> Any:
        upper = super().split_node(node, tokens)
        upper.forecache_place = getattr(node, "forecache_place", None)
        return upper

    def policy_changes_at(self, now: float) -> float:
        return now + REFRESH_S

    def _touch(self, req: Any, node_id: int, generated: bool = False) -> None:
        super()._touch(req, node_id, generated)
        self.future.matched(req)
        path = self._cut(self.tree_core._node_arena.get(node_id), self.future.bounds(req))
        ends = np.cumsum([len(one.key) for one in path])
        for one, place in zip(path, self.future.places(req, list(ends)), strict=True):
            one.forecache_place = place

    def _cut(self, end: Any, bounds: list[int]) -> list[Any]:
        """The path to `end` from the root, no node of which has one of the bounds inside."""
        path: list[Any] = []
        while end is not None and end.parent is not None:
            path.append(end)
            end = end.parent
        cut: list[Any] = []
        begin = 0
        for node in reversed(path):
            for bound in bounds:
                if begin < bound < begin + len(node.key):
                    cut.append(self.split_node(node, bound - begin))
                    begin = bound
            cut.append(node)
            begin += len(node.key)
        return cut

    def _key(self, tier: Tier, node: Any, now: float) -> Key:
        return (-self.future.next_use(getattr(node, "forecache_place", None), now), node.last_access_time)
