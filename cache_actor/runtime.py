"""The agent runtime layer: policies that look at what workflows do and act on the engines, by four primitives.

After CacheSage's layer between agent framework and engine (arXiv 2605.27744): *observe* updates what a policy knows,
*predict* says what is coming, *score* puts a figure on an item, and *act* is the only one with an effect on others.
Policies share the identity of workflows and agents, and nothing else. What they do goes into a draft of one engine's
plan, so that none of them can reach an engine by itself, and all of it is seen, counted, limited and can be shut off in
one place.
"""

from __future__ import annotations

import logging
from abc import ABC
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cache_actor.cluster import Cluster
from cache_actor.forecast import Forecast
from cache_actor.messages import CallEvent
from cache_actor.state import EngineState, WorkflowState

logger = logging.getLogger("forecache")

# A policy that fails so often in a row is left out from then on.
FAILURES = 5


@dataclass(slots=True)
class Draft:
    """What is to be done on one engine.

    Attributes:
        tables: for a workflow, the value of each agent's coming calls (see `Forecast.table`).
        prefetches: (value, workflow, agent, most tokens), the value in units of 1/VALUE_ONE.
        priorities: of the coming calls of a workflow, higher first.
        warm_ups: agents whose anchors should be computed.
        limit: workflows that may be in at once, None: all; `figures` those behind it, for people.
        reasons: workflow, what was decided about it, and the values of its words (see `decisions`), plain ones.
    """

    tables: dict[str, dict[str, int] | None] = field(default_factory=dict)
    prefetches: list[tuple[int, str, str, int]] = field(default_factory=list)
    priorities: dict[str, int] = field(default_factory=dict)
    warm_ups: list[str] = field(default_factory=list)
    limit: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    reasons: list[tuple[Any, ...]] = field(default_factory=list)


class RuntimePolicy(ABC):
    """One way to act on what is known. Every primitive has a default, so that a policy overrides what it needs.

    Contract, proved for every implementation by tests/unit/test_runtime_contract.py:

    * only `act` has an effect outside of the policy, and only on the draft;
    * what it keeps is bounded, and forgotten with the workflow that it is about;
    * it takes time by what is in `news`, not by all that lives on an engine;
    * without a forecast it does nothing that it would not do for an unknown workflow.
    """

    name: ClassVar[str]

    def observe(self, event: CallEvent, engine: EngineState) -> None:
        """A call has begun or is over."""
        return

    def ended(self, workflow: str) -> None:
        """A workflow is over, or was forgotten: nothing of it need be kept."""
        return

    def switched_off(self) -> None:
        """Nothing is acted on for now: what was found from moment to moment will not be true when it is again."""
        return

    def predict(self, workflow: WorkflowState) -> Forecast | None:
        """What comes next in a workflow; by default what the predictor said."""
        return workflow.forecast

    def score(self, workflow: WorkflowState, engine: EngineState) -> dict[str, float]:
        """What each agent of a workflow is worth to this policy on an engine; by default nothing."""
        return {}

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        """Adds to the draft what should be done on an engine, for workflows of which there is news."""
        return


class Runtime:
    """The policies that are plugged in. One that fails is reported, and left out after FAILURES in a row; the others,
    and serving, go on."""

    def __init__(self, policies: Sequence[RuntimePolicy]) -> None:
        self.policies = list(policies)
        self.failures: Counter[str] = Counter()

    def observe(self, events: Sequence[CallEvent], gone: Sequence[str], engine: EngineState) -> None:
        """What an engine has reported, and which workflows have ended or were forgotten since."""
        for policy in list(self.policies):
            try:
                for event in events:
                    policy.observe(event, engine)
                for workflow in gone:
                    policy.ended(workflow)
            except Exception:
                self._failed(policy)

    def switched_off(self) -> None:
        """All policies are, until they are asked to act again."""
        for policy in list(self.policies):
            try:
                policy.switched_off()
            except Exception:
                self._failed(policy)

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster) -> Draft:
        draft = Draft()
        for policy in list(self.policies):
            try:
                policy.act(news, engine, cluster, draft)
                self.failures[policy.name] = 0
            except Exception:
                self._failed(policy)
        return draft

    def _failed(self, policy: RuntimePolicy) -> None:
        self.failures[policy.name] += 1
        logger.exception("forecache: runtime policy %s failed", policy.name)
        if self.failures[policy.name] >= FAILURES:
            self.policies.remove(policy)
            logger.error("forecache: runtime policy %s failed %d times in a row and is left out", policy.name, FAILURES)
