"""Routing in a replay: a router, and what it is told of modelled engines. Engines are named by their places."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import serving.benchmark.routers  # noqa: F401  they register themselves
from cache_actor.snapshots import EngineSnapshot, Resident
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import ModelEngine
from serving.benchmark.workloads import Workflow, Workload
from serving.routing import RoutedCall, Router, make_router
from serving.routing.rates import Rates
from serving.routing.scoring import to_compute

# How often engines are looked at for the router, in seconds: coordinators hear of them as often.
PERIOD_S = 0.2
# An agent that has called on an engine within so many seconds is said to have its anchor there.
ANCHOR_S = 60.0


class RouterError(ValueError):
    """There is no such router, or it has no such parameter."""


def router_of(said: str, costs: Costs, workload: Workload) -> Router:
    """A router by its name, with parameters if any: `workflow:margin_s=3:horizon_calls=4`.

    Raises:
        RouterError: see there.
    """
    name, *assigned = said.split(":")
    parameters: dict[str, Any] = {}
    for one in assigned:
        key, separator, value = one.partition("=")
        try:
            parameters[key] = json.loads(value)
        except ValueError:
            separator = ""
        if not separator:
            raise RouterError(f"router {said!r}: {one!r} is no parameter; give key=value, with a number")
    if name == "workflow":
        rates = rates_of(costs, workload)
        parameters = {
            key: getattr(rates, key) for key in ("prefill_token_s", "host_token_s", "running_call_s")
        } | parameters
    try:
        return make_router(name, **parameters)
    except ValueError as error:
        raise RouterError(str(error)) from None


def rates_of(costs: Costs, workload: Workload) -> Rates:
    """What work costs on these engines, for a mean call of this workload."""
    statistics = workload.statistics()
    prompt = statistics.prompt_tokens / statistics.calls
    output = statistics.output_tokens / statistics.calls
    prefill = costs.prefill_token_s + costs.prefill_pair_s * prompt / 2
    return Rates(
        prefill_token_s=prefill,
        host_token_s=min(prefill, 1 / costs.link_tokens_per_s),
        running_call_s=output * (costs.decode_call_s + costs.decode_context_s * prompt),
    )


class Switchboard:
    """Asks the router, and tells it how the engines are.

    Args:
        engine: of a place, as it is now.

    Attributes:
        reasons: how often engines were chosen for which reason.
        moved: workflows that were moved between their calls.
    """

    def __init__(self, router: Router, workload: Workload, engines: int, engine: Callable[[int], ModelEngine]) -> None:
        self._router = router
        self._engine = engine
        self._engines = set(range(engines))
        self._anchors = {agent: sum(one.tokens for one in said) for agent, said in workload.anchors().items()}
        self._called: list[dict[str, float]] = [{} for _ in range(engines)]
        self._running: Counter[str] = Counter()
        self._contexts: dict[str, dict[str, int]] = {}
        self._homes: dict[str, int] = {}
        self._versions = itertools.count(1)
        self.reasons: Counter[str] = Counter()
        self.moved = 0
        router.set_engines(str(place) for place in self._engines)

    def place(self, workflow: Workflow, index: int, now: float, wanted: int | None = None) -> int:
        """The place of the engine to which a call goes; `wanted` is that to which its workflow was let in."""
        call = workflow.calls[index]
        pieces = tuple((segment.id, segment.tokens) for segment in call.prompt)
        let_in = None if wanted is None else str(wanted)
        asked = RoutedCall(
            workflow.id, call.agent, call.prompt_tokens, workflow.parent, call.agent, True, pieces, let_in
        )
        decision = self._router.route(asked, self._running, now)
        assert decision is not None, "there is always an engine"
        place = int(decision.engine)
        self.reasons[decision.why] += 1
        self._running[decision.engine] += 1
        self._called[place][call.agent] = now
        self._contexts.setdefault(workflow.id, {})[call.agent] = call.prompt_tokens
        self._homes[workflow.id] = place
        return place

    def answered(self, workflow: str, place: int) -> int | None:
        """A call is over. The place of the engine whose copy of the workflow may go now, if there is one."""
        self._running[str(place)] = max(0, self._running[str(place)] - 1)  # a lost engine's are forgotten
        left = self._router.answered(workflow, str(place))
        return None if left is None else int(left)

    def over(self, workflow: str) -> None:
        self._router.release(workflow)
        self._contexts.pop(workflow, None)
        self._homes.pop(workflow, None)

    def lose(self, place: int) -> None:
        """An engine is gone, with all its calls."""
        self._engines.discard(place)
        self._running[str(place)] = 0
        self._called[place] = {}
        self._router.drop_engine(str(place))

    def restore(self, place: int) -> None:
        """An engine has come, empty."""
        self._engines.add(place)
        self._router.set_engines(str(one) for one in self._engines)

    def tell(self, now: float) -> None:
        """Tells the router how things stand."""
        needed: Counter[int] = Counter()
        used: set[tuple[int, str]] = set()
        for workflow, place in self._homes.items():
            for agent, tokens in self._contexts[workflow].items():
                needed[place] += tokens - self._anchors[agent]
                used.add((place, agent))
        for place, agent in used:
            needed[place] += self._anchors[agent]
        for place in self._engines:
            self._router.see(self._snapshot(place, needed[place], now))
        self.moved += len(self._router.rehome(now))

    def _snapshot(self, place: int, needed: int, now: float) -> EngineSnapshot:
        engine = self._engine(place)
        found = engine.cache.pools.residency(engine.cache.ledger.owners)
        workflows = {workflow: Resident(device, host) for workflow, (device, host) in found.items()}
        called = self._called[place]
        return EngineSnapshot(
            str(place),
            next(self._versions),
            now,
            workflows,
            {agent: self._anchors[agent] for agent, at in called.items() if now - at <= ANCHOR_S},
            self._pending(engine, workflows),
            engine.running_calls,
            needed,
            engine.shape.device_tokens,
        )

    @staticmethod
    def _pending(engine: ModelEngine, workflows: dict[str, Resident]) -> int:
        waiting: Sequence[tuple[str, int]] = engine.pending
        return sum(to_compute(tokens, workflows.get(workflow, Resident(0)), 0)[0] for workflow, tokens in waiting)
