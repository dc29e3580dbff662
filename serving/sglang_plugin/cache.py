"""The radix cache backend `forecache`: SGLang's unified radix cache that knows who uses what it keeps.

Three classes enter SGLang by its own registries: a tree core and a FULL component (see `tree.py`), and the cache, which
turns calls into touches. What they add is bookkeeping and order; every KV byte is moved by SGLang's own code.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from serving.sglang_plugin.callers import Callers
from serving.sglang_plugin.counters import POLICY_NS, count_prompt
from serving.sglang_plugin.entries import Owner
from serving.sglang_plugin.ledger import Ledger
from serving.sglang_plugin.losses import Losses
from serving.sglang_plugin.pools import Pools
from serving.sglang_plugin.prefetch import MODES, Prefetcher
from serving.sglang_plugin.recorder import is_warm_up
from serving.sglang_plugin.returns import Returns
from serving.sglang_plugin.reuse import TIERS, Learning, Tier
from serving.sglang_plugin.settings import CacheSettings
from serving.sglang_plugin.shadows import Shadows
from serving.sglang_plugin.tables import Table, Tables
from serving.sglang_plugin.tree import FULL, ForecacheFullComponent, ForecacheTreeCore
from serving.sglang_plugin.victims import Victims

logger = logging.getLogger("forecache")

BACKEND = "forecache"


def register() -> None:
    """Makes `radix_cache_backend="forecache"` known to SGLang in this process; once is enough."""
    if BACKEND not in registered_tree_core_backends():
        register_tree_core_backend(BACKEND, ForecacheTreeCore)
        register_radix_cache_backend(BACKEND, _make_cache)


def _make_cache(ctx: TreeCacheBuildContext) -> Any:
    return create_unified_radix_cache(ctx, cache_class=ForecacheCache)


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
        self.losses = Losses()
        self.applied_plan = 0
        self.tables = Tables(self._put_table, settings.max_workflows)
        self._max_workflows = settings.max_workflows
        self.pools = Pools(self)
        self.prefetcher = Prefetcher(
            self, settings.prefetch, settings.prefetch_reserve_tokens, settings.prefetch_tokens_per_s
        )
        self.callers = Callers(self)
        self.victims = Victims(self, settings.tiers)
        self.returns = Returns(self)
        self.policy = self.followed = make_policy(settings.policy, settings.parameters)
        self.learning = self._new_learning()
        self._restore(settings.learned_file)
        self.shadows: Shadows | None = None  # from the first eviction on: until then all policies do the same
        self.ledger = Ledger(
            self.policy.combine, self.policy.strict, self.victims.lowered, settings.max_workflows, self._retired
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
        self.victims.reorder()

    def _new_learning(self) -> Learning | None:
        """Nothing is known yet; None for a policy that does not learn."""
        return Learning(self.policy, self.capacity) if isinstance(self.policy, Reuse) else None

    def emptied(self) -> None:
        """The tree was emptied on demand. What was learned stays; what was only in the tree is forgotten."""
        self.ledger.clear()
        self.returns.clear()
        self.prefetcher.clear()
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
        self.tables.end(workflow)
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
            self.tables.take(workflow, table, until)
        if plan.renew:
            self.tables.renew(until)
        self.prefetcher.accept(plan.prefetches, until)
        return self.report(plan.plan, told=[*plan.tables, *(order.workflow for order in plan.prefetches)])

    def _put_table(self, workflow: str, table: Table | None) -> bool:
        """A workflow's values from now on. False if it has made no call here."""
        owner = self.ledger.owners.get(workflow)
        if owner is None:
            return False
        self.ledger.set_table(workflow, table)
        self.moved(owner)
        if self.shadows is not None:
            self.shadows.set_table(workflow, table)
        return True

    def report(self, plan: int, refused: str = "", told: Iterable[str] = ()) -> EngineReport:
        """What has become of the cache: the receipts and losses that nobody has seen yet, and what those workflows hold
        that were `told` of."""
        return EngineReport(
            plan,
            not refused,
            refused,
            self.prefetcher.take_receipts(),
            self._counters(),
            self.pools.report(),
            self.pools.residency(told),
            self.losses.take(),
            self.applied_plan,
        )

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
        self.tables.expire(now)
        self.prefetcher.expire(now)

    @property
    def tiered(self) -> bool:
        """Whether there is a host tier."""
        return self.cache_controller is not None

    @property
    def pressure(self) -> int:
        """Tokens that were evicted though they were not retired, on either tier."""
        return self.victims.pressure

    @property
    def regret(self) -> int:
        """Tokens that were computed again after they had left the tree."""
        return self.counters["regret"]

    @property
    def reused(self) -> int:
        """Prompt tokens of finished calls that were found here, on either tier."""
        return self.counters["hit_device"] + self.counters["hit_host"]

    @property
    def tier_tokens(self) -> tuple[int, int]:
        """What device and host hold; 0 for a host tier that there is not."""
        return self.capacity("device"), self.capacity("host") if self.tiered else 0

    def free_tokens(self) -> int:
        return int(self.token_to_kv_pool_allocator.available_size())

    def split_node(self, node: UnifiedTreeNode, tokens: int) -> UnifiedTreeNode:
        """Cuts a node after `tokens` of its tokens; the new upper node."""
        upper, action = self.tree_core._split_node(node.key, node, tokens)
        if action is not None:
            self._apply_cache_actions([action])
        return upper

    def evict(self, params: EvictParams) -> EvictResult:
        self.victims.wanted = params.num_tokens
        return super().evict(params)

    def evict_for_alloc(self, params: EvictParams, **kwargs: Any) -> EvictResult:
        self.victims.wanted = params.num_tokens
        return super().evict_for_alloc(params, **kwargs)

    @property
    def piecewise(self) -> bool:
        """Whether a victim may leave in part."""
        return self.policy.piecewise

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        result = super().match_prefix(params)
        if params.req is None or is_warm_up(params.req.kv_hints):
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
        if self.disable or is_warm_up(req.kv_hints):
            return
        if req.last_node is not None:
            self._touch(req, req.last_node, generated=up_to > len(req.origin_input_ids))
        if req.finished():
            count_prompt(self.counters, req)
            self._show_end(req, up_to)
        if req.finished() and (caller := self.callers.of(req)).final and caller.owner is not None:
            self.end_workflow(caller.owner.workflow)

    def _touch(self, req: Any, node_id: int, generated: bool = False) -> None:
        node = self.tree_core._node_arena.get(node_id)
        if node is not None:
            self.callers.touch(node, self.callers.of(req), generated)

    def show_call(self, req: Any, identity: RequestIdentity | None) -> None:
        """A call begins: the shadows see it, too."""
        if not isinstance(self.policy, Reuse) or not self.policy.guard or not self.victims.pressure:
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
            self.victims.reorder()
        self.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def moved(self, owner: Owner) -> None:
        """What a workflow does or is forecast to do has changed, and with it the chances of all its nodes."""
        if self.learning is not None:
            self.victims.lowered(list(owner.nodes()))

    def policy_changes_at(self, now: float) -> float:
        return self.followed.changes_at(now)

    def victim_key(self, tier: Tier, node: UnifiedTreeNode, now: float) -> Key:
        if self.learning is not None:
            return self.learning.key(self.followed, tier, self.ledger, node, now)
        return self.followed.key(self.ledger.facts(node), now)

    def _retired(self, nodes: list[Any]) -> None:
        if self.learning is not None:
            self.learning.retired(nodes)
