"""Admission: how many workflows run at once on each engine. Ingresses hold the others (see `cache_actor.admission`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cache_actor.admission import LimitController, Signals, make_controller
from cache_actor.admission.base import DEFAULT_CONTROLLER
from cache_actor.cluster import Cluster
from cache_actor.runtime import Draft, RuntimePolicy
from cache_actor.state import EngineState, WorkflowState

# Limits are found anew no oftener than this, in seconds of the engine's clock: so far apart are the moments that are
# compared, however long it took to hear of them.
PERIOD_S = 1.0


@dataclass(slots=True)
class _Watch:
    """One engine, for as long as it is known and does not start again, and its controller.

    tokens, growth: of the contexts of the workflows that are in, and what these are forecast to grow by.
    limit, figures: as of the latest observation.
    """

    engine: EngineState
    controller: LimitController
    tokens: int = 0
    growth: float = 0.0
    next_at: float = 0.0
    limit: int | None = None
    figures: dict[str, float] = field(default_factory=dict)


class Admission(RuntimePolicy):
    """Has one controller for each engine, tells it what the engine shows, and passes its limit on.

    An engine whose cache cannot tell what it computes again (SGLang's own) gets no limit.

    Args:
        controller: its name, `parameters` those it takes (see `cache_actor.admission`).

    Raises:
        ValueError: there is no such controller, or it cannot take the parameters.
    """

    name: ClassVar[str] = "admission"

    def __init__(self, controller: str = DEFAULT_CONTROLLER, parameters: Mapping[str, Any] | None = None) -> None:
        make_controller(controller, parameters)
        self._controller = controller
        self._parameters = parameters
        self._watches: dict[str, _Watch] = {}
        self._contexts: dict[str, tuple[_Watch, int, float]] = {}

    def ended(self, workflow: str) -> None:
        self._put(workflow, None)

    def switched_off(self) -> None:
        self._watches.clear()
        self._contexts.clear()

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        """What the workflow's context is forecast to grow by until its next call, in tokens."""
        forecast = self.predict(workflow)
        chance = 1.0 if forecast is None else forecast.survival[0]
        return {"": chance * workflow.path.growth}

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        watch = self._watch(engine, cluster)
        for workflow in news:
            if workflow.engine == engine.id:
                growth = self.score(workflow, engine)[""]
                self._put(workflow.id, None if workflow.paused else (watch, workflow.path.context, growth))
        work = engine.work
        if work.regret is not None and work.at >= watch.next_at:
            watch.next_at = work.at + PERIOD_S
            watch.limit = watch.controller.observe(_signals(engine, work.regret, watch, cluster))
            watch.figures = watch.controller.explain()
        draft.limit = watch.limit
        draft.figures = watch.figures

    def _watch(self, engine: EngineState, cluster: Cluster) -> _Watch:
        """That of an engine that is new, was silent for long or has started again begins anew."""
        watch = self._watches.get(engine.id)
        if watch is None or watch.engine is not engine:
            controller = make_controller(self._controller, self._parameters)
            watch = self._watches[engine.id] = _Watch(engine, controller)
            for gone in self._watches.keys() - cluster.engines.keys():
                del self._watches[gone]
        return watch

    def _put(self, workflow: str, context: tuple[_Watch, int, float] | None) -> None:
        """A workflow counts there, and with this, from now on; None: nowhere."""
        if (before := self._contexts.pop(workflow, None)) is not None:
            watch, tokens, growth = before
            watch.tokens -= tokens
            watch.growth -= growth
        if context is not None:
            self._contexts[workflow] = context
            watch, tokens, growth = context
            watch.tokens += tokens
            watch.growth += growth


def _signals(engine: EngineState, regret: int, watch: _Watch, cluster: Cluster) -> Signals:
    """Without an ingress that tells of a gate, all that lives on an engine is in."""
    ingresses, work = cluster.ingresses, engine.work
    return Signals(
        at=work.at,
        admitted=ingresses.admitted(engine.id) if ingresses.known else len(engine.workflows),
        held=ingresses.held(engine.id),
        running_calls=engine.running,
        waiting_calls=engine.waiting,
        prefill_s=work.prefill_s,
        busy_s=work.busy_s,
        computed=work.computed,
        regret=regret,
        reused=work.reused,
        output=work.output,
        working_set=watch.tokens,
        growth=round(max(0.0, watch.growth)),
        device_tokens=work.device_tokens,
        host_tokens=work.host_tokens,
    )
