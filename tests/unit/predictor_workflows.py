"""Workflows made up for tests of predictors."""

from __future__ import annotations

import random

from predictor_actor.base import AgentFacts, Call, WorkflowTrace

FACTS = {
    "planner": AgentFacts(200, (11, 12)),
    "coder": AgentFacts(400, (21, 22, 23)),
    "tester": AgentFacts(300, (31, 32)),
    "reviewer": AgentFacts(250, (41,)),
}


def trace_of(
    agents: list[str], workflow: str = "w", ending: str = "final", hidden: bytes | None = None
) -> WorkflowTrace:
    """A workflow whose calls grow by a hundred tokens and take a second."""
    calls = tuple(
        Call(agent, 100 * (place + 1), 50, float(place), place + 0.8, None, hidden)
        for place, agent in enumerate(agents)
    )
    return WorkflowTrace(workflow, calls, ending, 1000.0, {a: FACTS[a] for a in agents if a in FACTS})  # type: ignore[arg-type]


def retry_loops(count: int, seed: int = 0, coder: str = "coder") -> list[WorkflowTrace]:
    """planner, then coder and tester twice or thrice, as the parity of the workflow's number has it, then reviewer.

    After a tester only the number of rounds so far and the first call's name (`planner` or `planner-long`) decide.
    """
    rng = random.Random(seed)
    traces = []
    for number in range(count):
        long = rng.random() < 0.5
        rounds = 3 if long else 2
        agents = ["planner-long" if long else "planner", *[coder, "tester"] * rounds, "reviewer"]
        traces.append(trace_of(agents, f"{seed}-{number}"))
    return traces
