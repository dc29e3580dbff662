"""The radix cache backend `forecache`: SGLang's unified radix cache that knows who uses what it keeps.

Three classes enter SGLang by its own registries: a tree core and a FULL component (see `tree.py`), and the cache, which
turns calls into touches. What they add is bookkeeping and order; every KV byte is moved by SGLang's own code.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_unified_radix_cache,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    register_tree_core_backend,
    registered_tree_core_backends,
)
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from cache_actor.messages import EnginePlan, EngineReport, RequestIdentity
from cache_actor.policies import make_policy
from cache_actor.policies.base import Key
from cache_actor.policies.reuse import Reuse
from serving.sglang_plugin.ghosts import Ghosts
from serving.sglang_plugin.ledger import Ledger, Memory, Owner
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.pieces import PIECES, kept
from serving.sglang_plugin.pools import Pools
from serving.sglang_plugin.prefetch import MODES, Prefetcher, is_moving
from serving.sglang_plugin.recorder import identity_of
from serving.sglang_plugin.reuse import TIERS, Learning, Tier, Watches
from serving.sglang_plugin.settings import CacheSettings
from serving.sglang_plugin.shadows import Shadows
from serving.sglang_plugin.tree import FULL, ForecacheFullComponent, ForecacheTreeCore
from serving.sglang_plugin.uses import Use

logger = logging.getLogger("forecache")

BACKEND = "forecache"
# The counter of processor time, in nanoseconds; the others count tokens, or events.
POLICY_NS = "policy_ns"


def register() -> None:
    """Makes `radix_cache_backend="forecache"` known to SGLang in this process; once is enough."""
    if BACKEND not in registered_tree_core_backends():
        register_tree_core_backend(BACKEND, ForecacheTreeCore)
        register_radix_cache_backend(BACKEND, _make_cache)


def _make_cache(ctx: TreeCacheBuildContext) -> Any:
    return create_unified_radix_cache(ctx, cache_class=ForecacheCache)


# What is remembered of a node that has left the tree.
Past = tuple[Watches, Memory] | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is, in the ledger's terms; without an owner, nobody's in particular."""

    owner: Owner | None
    use: Use
    final: bool


class ForecacheCache(UnifiedRadixCache):
    """The cache itself: who calls is read off each request's `kv_hints` and written into the ledger.

    A request without our identity goes by recency; so does everything while no policy, forecast or end of a workflow
    has been heard of, which is SGLang's own order.
    """

    def __init__(self, params: Any, clock: Callable[[], float] | None = None) -> None:
        settings = CacheSettings.from_environment()
        self._now = 0.0
        # By default time is what `tick` says: every rank hears the same at the same step.
        self.clock = clock or (lambda: self._now)
        self.counters: Counter[str] = Counter()
        self.ghosts = Ghosts()
        self.applied_plan = 0
        self._tables_until: dict[str, float] = {}
        self._early_tables: OrderedDict[str, tuple[dict[str, int], float]] = OrderedDict()
        self._max_workflows = settings.max_workflows
        self.pools = Pools(self)
        self.prefetcher = Prefetcher(
            self, settings.prefetch, settings.prefetch_reserve_tokens, settings.prefetch_tokens_per_s
        )
        self._tiers = settings.tiers
        self.queues: dict[str, VictimQueue] = {}
        self.wanted = 0  # tokens that an eviction is to bring
        self.policy = self.followed = make_policy(settings.policy, settings.parameters)
        self.learning = self._new_learning()
        self._restore(settings.learned_file)
        self.shadows: Shadows | None = None  # from the first eviction on: until then all policies do the same
        self._under_pressure = False
        self._came_back: dict[int, list[tuple[int, Memory]]] = {}  # pieces of nodes that no call has touched yet
        self.ledger = Ledger(
            self.policy.combine, self.policy.strict, self._lowered, settings.max_workflows, self._retired
        )
        params.tree_core_backend = BACKEND
        params.component_registry_override = {
            **(params.component_registry_override or {}),
            FULL: ForecacheFullComponent,
        }
        super().__init__(params)
        logger.info("forecache: cache policy %s %s on %s", settings.policy, settings.parameters, settings.tiers)

    def set_policy(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Another policy from now on; ledger and values stay, what a policy has learned does not.

        Raises:
            ValueError: an unknown policy or parameter.
        """
        self.policy = self.followed = make_policy(name, parameters)
        self.learning = self._new_learning()
        self.shadows = None
        self.ledger.change(self.policy.combine, self.policy.strict, self.tree_core._node_arena.values())
        for queue in self.queues.values():
            queue.rebuild()

    def _new_learning(self) -> Learning | None:
        """Nothing is known yet; None for a policy that does not learn."""
        return Learning(self.policy, self.capacity) if isinstance(self.policy, Reuse) else None

    def emptied(self) -> None:
        """The tree was emptied on demand. What was learned stays; what was only in the tree is forgotten."""
        self.ledger.clear()
        self.ghosts.clear()
        self.prefetcher.clear()
        self._came_back.clear()
        self.shadows = None
        self.followed = self.policy
        if self.learning is not None:
            self.learning.forget_watches()

    def _restore(self, path: str) -> None:
        """Begins with what another engine has learned, if this one's policy can use it."""
        if self.learning is None or not path:
            return
        try:
            self.learning.restore(json.loads(Path(path).read_text()))
            logger.info("forecache: goes on from what was learned before")
        except (OSError, ValueError) as error:
            logger.warning("forecache: what was learned before is of no use here: %s", error)

    def capacity(self, tier: Tier) -> int:
        """What a tier holds, in tokens."""
        if tier == "device":
            return int(self.token_to_kv_pool_allocator.size)
        return int(self.cache_controller.mem_pool_host.size) if self.tiered else 1

    def end_workflow(self, workflow: str) -> bool:
        """The workflow is over: what it alone used is retired. False for one that is not active here."""
        self.prefetcher.cancel(workflow)
        self._tables_until.pop(workflow, None)
        self._early_tables.pop(workflow, None)
        if self.shadows is not None:
            self.shadows.end(workflow)
        return self.ledger.end(workflow)

    def apply(self, plan: EnginePlan) -> EngineReport:
        """As `_apply`; the time it takes counts as the policy's."""
        begin = time.perf_counter_ns()
        report = self._apply(plan)
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin
        return report

    def _apply(self, plan: EnginePlan) -> EngineReport:
        """Does what a plan says, at once and as a whole; prefetches are begun later, between steps.

        A plan that is not newer than the last is refused, as is one without an end or with an unknown policy or way
        to prefetch.
        """
        if plan.plan <= self.applied_plan:
            return self.report(plan.plan, f"plan {plan.plan} is not newer than plan {self.applied_plan}")
        if not 0 < plan.time_to_live_s < math.inf:
            return self.report(plan.plan, f"time_to_live_s is {plan.time_to_live_s}; give a finite time above 0")
        if plan.prefetch is not None and plan.prefetch not in MODES:
            return self.report(plan.plan, f"prefetch cannot be {plan.prefetch!r}; choose from {', '.join(MODES)}")
        if plan.policy is not None:
            try:
                self.set_policy(plan.policy, plan.parameters)
            except ValueError as error:
                return self.report(plan.plan, str(error))
        if plan.prefetch is not None:
            self.prefetcher.mode = plan.prefetch
        self.applied_plan = plan.plan
        until = self.clock() + plan.time_to_live_s
        for workflow in plan.ends:
            self.end_workflow(workflow)
        for workflow, table in plan.tables.items():
            self._take_table(workflow, table, until)
        self.prefetcher.accept(plan.prefetches, until)
        return self.report(plan.plan)

    def _take_table(self, workflow: str, table: dict[str, int] | None, until: float) -> None:
        """Values until a time; those of a workflow that has made no call here are kept for its first."""
        owner = self.ledger.owners.get(workflow)
        if owner is not None:
            self.ledger.set_table(workflow, table)
            self._moved(owner)
            if self.shadows is not None:
                self.shadows.set_table(workflow, table)
            if table is not None:
                self._tables_until[workflow] = until
        elif table is None:
            self._early_tables.pop(workflow, None)
        else:
            self._early_tables[workflow] = table, until
            self._early_tables.move_to_end(workflow)
            if len(self._early_tables) > self._max_workflows:
                self._early_tables.popitem(last=False)

    def report(self, plan: int, refused: str = "") -> EngineReport:
        """What has become of the cache, with the receipts that nobody has seen yet."""
        receipts = self.prefetcher.take_receipts()
        return EngineReport(plan, not refused, refused, receipts, self._counters(), self.pools.report())

    def figures(self) -> dict[str, Any]:
        """For people who look: the policy, counters and pools, in tokens."""
        figures = {"policy": self.policy.name, "counters": self._counters(), "pools": self.pools.report()}
        if self.shadows is not None:
            figures |= {"follows": self.followed.name, "would_compute": self.shadows.misses()}
        return figures

    def _counters(self) -> dict[str, int]:
        prefetched = {f"prefetch_{name}": count for name, count in self.prefetcher.counters.items()}
        return dict(self.counters) | prefetched

    def tick(self, now: float) -> None:
        """It is `now`: what is too old lapses. Called a few times a second, at the same step on every rank."""
        self._now = now
        for workflow in [workflow for workflow, until in self._tables_until.items() if until <= now]:
            del self._tables_until[workflow]
            self._take_table(workflow, None, now)
        for workflow in [workflow for workflow, (_, until) in self._early_tables.items() if until <= now]:
            del self._early_tables[workflow]
        self.prefetcher.expire(now)

    @property
    def tiered(self) -> bool:
        """Whether there is a host tier."""
        return self.cache_controller is not None

    def free_tokens(self) -> int:
        return int(self.token_to_kv_pool_allocator.available_size())

    def split_node(self, node: UnifiedTreeNode, tokens: int) -> UnifiedTreeNode:
        """Cuts a node after `tokens` of its tokens; the new upper node."""
        upper, action = self.tree_core._split_node(node.key, node, tokens)
        if action is not None:
            self._apply_cache_actions([action])
        return upper

    def evict(self, params: EvictParams) -> EvictResult:
        self.wanted = params.num_tokens
        return super().evict(params)

    def evict_for_alloc(self, params: EvictParams, **kwargs: Any) -> EvictResult:
        self.wanted = params.num_tokens
        return super().evict_for_alloc(params, **kwargs)

    @property
    def piecewise(self) -> bool:
        """Whether a victim may leave in part."""
        return self.policy.piecewise

    def cut(self, victim: UnifiedTreeNode, tier: Tier, wanted: int) -> None:
        """Cuts a victim so that no more of it leaves than the `wanted` tokens, if that is how victims leave."""
        if not self.piecewise or is_moving(victim):
            return
        begin = time.perf_counter_ns()
        if staying := kept(len(victim.key), wanted, self.capacity(tier) // PIECES, self.page_size):
            last_access_time = victim.last_access_time
            self.split_node(victim, staying).last_access_time = last_access_time
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        result = super().match_prefix(params)
        if params.req is None:
            return result
        node = self.tree_core.node_by_id(result.best_match_node)
        if self.prefetcher.is_loading(node):
            # Its request waits for the load; it neither computes nor loads the prefix a second time. The locks are
            # given back at the next step, where all ranks do it together.
            for ack in list(self.cache_controller.ack_load_queue):
                ack.finish_event.synchronize()
        self.prefetcher.used(node)
        self._touch(params.req, result.best_match_node)
        return result

    def load_back(self, node_id: int, *args: Any, **kwargs: Any) -> bool:
        learning, absent = self.learning, 0
        if learning is not None:
            node = self.tree_core.node_by_id(node_id)
            while node.parent is not None and node.evicted:
                absent += len(node.key)
                node = node.parent
        started = bool(super().load_back(node_id, *args, **kwargs))
        if learning is not None and started:
            learning.loaded(absent)
        return started

    def loading_check(self, finish_count: int | None = None) -> None:
        super().loading_check(finish_count)
        self.prefetcher.finished(self.ongoing_load_back)

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        if self.disable:
            return
        if req.last_node is not None:
            self._touch(req, req.last_node, generated=up_to > len(req.origin_input_ids))
        if req.finished():
            self.counters["prompt"] += len(req.origin_input_ids)
            self.counters["hit_device"] += req.cached_tokens_device
            self.counters["hit_host"] += req.cached_tokens_host
            computed = len(req.origin_input_ids) - req.cached_tokens_device - req.cached_tokens_host
            self.counters["computed"] += max(0, computed)
            self._show_end(req, up_to)
        if req.finished() and (caller := self._caller(req)).final and caller.owner is not None:
            self.end_workflow(caller.owner.workflow)

    def _touch(self, req: Any, node_id: int, generated: bool = False) -> None:
        node = self.tree_core._node_arena.get(node_id)
        if node is not None:
            self.touch(node, self._caller(req), generated)

    def touch(self, node: UnifiedTreeNode, caller: Caller, generated: bool = False) -> None:
        """A call uses the path to a node; `generated`: what is new of it is output."""
        begin = time.perf_counter_ns()
        self._touch_path(node, caller, generated)
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def _touch_path(self, node: UnifiedTreeNode, caller: Caller, generated: bool) -> None:
        owner, use = caller.owner, caller.use
        use.at = self.clock()
        path = _path(node) if self.learning is not None else []
        known_before = self._restore_pieces(path)
        if self.learning is not None:
            path = _path(node) if known_before else path
            self.learning.used(one for one in path if one.entry.use is not use)
        if owner is None:
            self.ledger.touch_unnamed(node, use, generated)
        elif owner.ended:
            self.ledger.touch_ended(node, owner, use)
        else:
            use.bit = self.ledger.bit(use.agent)
            self.ledger.touch(node, owner, use, generated)
        for piece, memory in known_before:
            self.ledger.recall(piece, memory)
        if path:
            self._lowered(path)

    def caller(self, workflow: str, agent: str, final: bool = False) -> Caller:
        """A new call of a workflow."""
        owner = self.ledger.owner(workflow)
        owner.calls_as(agent)
        self._moved(owner)
        return Caller(owner, Use(self.clock(), agent, step=owner.calls), final)

    def unnamed_caller(self) -> Caller:
        """A new call of nobody in particular."""
        return Caller(None, Use(self.clock()), final=False)

    def _caller(self, req: Any) -> Caller:
        """Who makes the request, settled at its first touch: a workflow that ends meanwhile is not revived by it."""
        try:
            caller: Caller = req.forecache_caller
        except AttributeError:
            identity = identity_of(req.kv_hints)
            caller = (
                self.caller(identity.workflow, identity.agent, identity.final)
                if identity is not None
                else self.unnamed_caller()
            )
            req.forecache_caller = caller
            self._show_call(req, identity)
            if identity is not None and (early := self._early_tables.pop(identity.workflow, None)):
                self._take_table(identity.workflow, *early)
        return caller

    def _show_call(self, req: Any, identity: RequestIdentity | None) -> None:
        """A call begins: the shadows see it, too."""
        if not isinstance(self.policy, Reuse) or not self.policy.guard or not self._under_pressure:
            return
        begin = time.perf_counter_ns()
        if self.shadows is None:
            tier = max(TIERS, key=self.capacity)
            learned = None if self.learning is None else (self.learning, tier)
            self.shadows = Shadows(self.policy, self.capacity(tier), self._max_workflows, learned)
        workflow, agent = (identity.workflow, identity.agent) if identity is not None else (None, "")
        space = (req.extra_key, req.cache_salt)
        self.shadows.called(req.rid, workflow, agent, req.origin_input_ids, space, self.clock())
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def _show_end(self, req: Any, up_to: int) -> None:
        """A call is over; if the shadows say so, another policy is followed from now on."""
        if self.shadows is None:
            return
        begin = time.perf_counter_ns()
        if self.shadows.finished(req.rid, req.full_untruncated_fill_ids[:up_to], self.clock()):
            self.followed = self.shadows.followed
            self.counters["policy_changes"] += 1
            logger.info("forecache: follows policy %s from now on: %s", self.followed.name, self.shadows.misses())
            for queue in self.queues.values():
                queue.rebuild()
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def _moved(self, owner: Owner) -> None:
        """What a workflow does or is forecast to do has changed, and with it the chances of all its nodes."""
        if self.learning is not None:
            self._lowered(list(self.ledger.nodes_of(owner)))

    def new_queue(self, tier: Tier) -> VictimQueue:
        key = partial(self._key, tier) if tier in self._tiers else _recency
        queue = VictimQueue(key, self.policy_changes_at, self.clock, tier)
        self.queues[tier] = queue
        return queue

    def policy_changes_at(self, now: float) -> float:
        return self.followed.changes_at(now)

    def next_victim(self, queue: VictimQueue) -> UnifiedTreeNode | None:
        """The first of a queue; the time it takes counts as the policy's."""
        begin = time.perf_counter_ns()
        victim = queue.first()
        if self.learning is not None and victim is not None:
            self.learning.evicting(queue.tier, queue, victim)
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin
        return victim

    def count_eviction(self, tier: str, node: UnifiedTreeNode) -> None:
        """Counts the tokens of a victim by tier and by why it was chosen."""
        entry = node.entry
        reason = "retired" if self.ledger.is_retired(entry) else "low_value" if entry.tables else "recency"
        self.counters[f"evicted_{tier}_{reason}"] += len(node.key)
        self._under_pressure = self._under_pressure or reason != "retired"
        if tier == "device":
            self.prefetcher.lost(node)
            if self.prefetcher.at_work and reason != "retired":
                self.counters["active_evictions_by_prefetch"] += len(node.key)

    def _key(self, tier: Tier, node: UnifiedTreeNode, now: float) -> Key:
        if self.learning is not None:
            return self.learning.key(self.followed, tier, self.ledger, node, now)
        return self.followed.key(self.ledger.facts(node), now)

    def left(self, node: UnifiedTreeNode) -> None:
        """A node, a leaf, leaves the tree; what to learn from it if it comes again is remembered."""
        begin = time.perf_counter_ns()
        self._came_back.pop(node.id, None)
        past = None if self.learning is None else (self.learning.left(node), self.ledger.memory(node))
        self.ghosts.lost(node, past)
        self.ledger.drop(node)
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def came_back(self, node: UnifiedTreeNode, pieces: list[tuple[int, Past]]) -> None:
        """What had left the tree in pieces has been computed again as (the beginning of) one node."""
        if self.learning is None:
            return
        remembered: list[tuple[int, Memory]] = []
        for tokens, past in pieces:
            if past is None:  # it left under another policy
                break
            watches, memory = past
            self.learning.returned(watches)
            if remembered and remembered[-1][1] == memory:  # it was cut when its end left before its beginning
                tokens += remembered.pop()[0]
            remembered.append((tokens, memory))
        if remembered:
            self._came_back[node.id] = remembered

    def _restore_pieces(self, path: list[UnifiedTreeNode]) -> list[tuple[UnifiedTreeNode, Memory]]:
        """Cuts nodes of the path into the pieces that they left in; the pieces with what is known of them.

        Otherwise what is one node with something new after it would be taken for new as a whole: an agent's anchor for
        a part of the prompt that brings it back.
        """
        found: list[tuple[UnifiedTreeNode, Memory]] = []
        for node in path if self._came_back else ():
            if node.id not in self._came_back or is_moving(node):
                continue
            for tokens, memory in self._came_back.pop(node.id):
                if tokens >= len(node.key) or tokens % self.page_size:
                    found.append((node, memory))
                    break
                found.append((self.split_node(node, tokens), memory))
        return found

    def _retired(self, nodes: list[Any]) -> None:
        if self.learning is not None:
            self.learning.retired(nodes)

    def _lowered(self, nodes: list[Any]) -> None:
        for queue in self.queues.values():
            queue.lowered(nodes)


def _path(node: UnifiedTreeNode) -> list[UnifiedTreeNode]:
    """From a node up to the root, without it."""
    path: list[UnifiedTreeNode] = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def _recency(node: UnifiedTreeNode, now: float) -> Key:
    return (node.last_access_time,)
