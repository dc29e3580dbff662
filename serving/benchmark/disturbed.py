"""Recorded workflows made harder to forecast: with noise, or over a call graph that has changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from predictor_actor.base import WorkflowTrace
from predictor_actor.examples import facts_of


def with_noise(traces: Sequence[WorkflowTrace], share: float, seed: int = 0) -> list[WorkflowTrace]:
    """Each call is, with the given chance, made by one of the other agents, all of them equally likely.

    Raises:
        ValueError: the share is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the share of noise is {share}; give one from 0 to 1")
    agents = list(facts_of(traces))
    rng = random.Random(seed)

    def named(agent: str) -> str:
        if len(agents) < 2 or rng.random() >= share:
            return agent
        other = agents[rng.randrange(len(agents) - 1)]
        return other if other != agent else agents[-1]

    return _renamed(traces, named)


def with_other_graph(traces: Sequence[WorkflowTrace], seed: int = 0) -> list[WorkflowTrace]:
    """The agents have changed their parts: each is called where another one was.

    The agents themselves, their names and anchors, are the same, and the new graph is as hard to forecast as the old.
    """
    agents = list(facts_of(traces))
    order = random.Random(seed).sample(agents, len(agents))
    part = dict(zip(order, order[1:] + order[:1], strict=True))
    return _renamed(traces, part.__getitem__)


def _renamed(traces: Sequence[WorkflowTrace], named: Callable[[str], str]) -> list[WorkflowTrace]:
    facts = facts_of(traces)
    found = []
    for trace in traces:
        calls = tuple(replace(call, agent=named(call.agent)) for call in trace.calls)
        known = {call.agent: facts[call.agent] for call in calls}
        found.append(replace(trace, calls=calls, agents=known))
    return found
