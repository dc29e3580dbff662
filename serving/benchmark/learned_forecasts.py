"""What the product's own predictor says of a workload, learning as it goes: for replays, which have no coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterable

from cache_actor.forecast import compiled
from cache_actor.paths import CallPath
from cache_actor.policies.base import VALUE_ONE
from cache_actor.runtime_policies.kv_prefetch import LEAST_CHANCE
from predictor_actor.base import Call, WorkflowTrace
from predictor_actor.learning import Learning
from predictor_actor.train import train
from serving.benchmark.forecasts import DISCOUNT, Source, Word
from serving.benchmark.workloads import Workflow, Workload


class LearnedForecasts(Source):
    """Observes, forecasts, judges and trains as a `PredictorReplica` does, but for training in the midst of it.

    Args:
        trained: whether what it is taught is learned; without it begins with nothing.
    """

    def __init__(self, trained: bool) -> None:
        self._trained = trained
        self._learning = Learning()
        self._paths: dict[str, CallPath] = {}

    def teach(self, workload: Workload) -> None:
        if self._trained:
            traces = traces_of(workload.workflows)
            self._learning.load(train(traces).predictor, "trained before", 0.0)

    def started(self, workflow: Workflow, index: int, now: float) -> Word:
        call = workflow.calls[index]
        path = self._paths.setdefault(workflow.id, CallPath())
        path.began(call.agent, now, call.prompt_tokens)
        prefix = path.prefix(workflow.id)
        self._learning.observe([prefix])
        (forecast,) = compiled(self._learning.forecast([prefix]), [path.length], DISCOUNT, now)
        coming = {agent: chance for agent, chance in forecast.next.items() if chance >= LEAST_CHANCE}
        return Word(forecast.table, {agent: round(chance * VALUE_ONE) for agent, chance in coming.items()})

    def ended(self, workflow: Workflow, index: int, now: float) -> Word | None:
        call = workflow.calls[index]
        self._paths[workflow.id].over(call.agent, now, call.prompt_tokens, call.output_tokens)
        return None

    def over(self, workflow: Workflow) -> None:
        path = self._paths.pop(workflow.id, None)
        if path is None:
            return
        learning, now = self._learning, 0.0
        learning.ended([path.trace(workflow.id, "final")])
        while learning.judge(now):
            pass
        if (traces := learning.due(now)) is not None:
            begin = time.monotonic()
            learning.began()
            learning.admit(train(traces).predictor, len(traces), time.monotonic() - begin, now)


def traces_of(workflows: Iterable[Workflow]) -> list[WorkflowTrace]:
    """A workload's workflows as what a predictor is trained on; when its calls are made is not known."""
    return [
        WorkflowTrace(
            workflow.id, tuple(Call(call.agent, call.prompt_tokens, call.output_tokens) for call in workflow.calls)
        )
        for workflow in workflows
    ]
