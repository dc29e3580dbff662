"""What is lost by there being two engines instead of one: next to nothing, and both work alike."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest
from running_server import MODEL, Server

from serving.benchmark.driver.call import Answer
from serving.benchmark.driver.load import Load, LoadOptions
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.driver.planner import Planner
from serving.benchmark.workloads import Lanes, Tokens, Workflow, Workload, make_workload

AT_ONCE = 8
VOCABULARY = range(10, 2000)


def most_hits(workload: Workload) -> float:
    """The share of the prompt tokens that a cache without bounds would hit, were calls served one after another.

    No engine hits more, however large its pool: a token that no prompt and no answer before had in its place is new to
    all of them.
    """
    seen: set[tuple[str, ...]] = set()
    hits = prompts = 0
    for workflow in workload.workflows:
        answers = {one.output_of: one.id for call in workflow.calls for one in call.prompt if one.output_of is not None}
        for index, call in enumerate(workflow.calls):
            prefix: tuple[str, ...] = ()
            for segment in call.prompt:
                prefix = (*prefix, segment.id)
                hits += segment.tokens if prefix in seen else 0
                seen.add(prefix)
            if index in answers:
                seen.add((*prefix, answers[index]))
            prompts += call.prompt_tokens
    return hits / prompts


async def played(server: Server, workload: Workload) -> list[Answer]:
    """All calls of a workload, eight workflows at once."""
    answers: list[Answer] = []

    def keep(workflow: Workflow, index: int, answer: Answer) -> None:
        answers.append(answer)

    async def nobody(engine: str, plan: object) -> None:
        raise AssertionError("nobody forecasts anything")

    async with httpx.AsyncClient(base_url=f"{server.url}/v1/", timeout=None) as http:
        tokens = Tokens(VOCABULARY.stop, VOCABULARY.start)
        desk = PlanDesk(iter(()), prefetch=False)
        async with Planner(None, desk, [], nobody) as planner:  # type: ignore[arg-type]
            options = LoadOptions(MODEL, "routing-hits", False, 60.0, 30.0)
            await Load(http, tokens, planner, options, keep).play(workload, Lanes(AT_ONCE))
    return answers


@pytest.mark.timeout(240)
def test_two_engines_hit_what_one_of_twice_the_pool_could_and_share_the_load(server: Server) -> None:
    workload = make_workload("hover", 7, workflows=24, tool_s=0.05, scale=0.3, output_scale=0.5)
    answers = asyncio.run(played(server, workload))
    assert {answer.error for answer in answers} == {None}
    prompt = sum(answer.prompt_tokens for answer in answers)
    hits = sum(answer.hit_device + answer.hit_host for answer in answers) / prompt
    told = f"{hits:.3f} of at most {most_hits(workload):.3f}; {Counter(answer.route for answer in answers)}"
    assert hits >= most_hits(workload) - 0.02, told
    for weigh in (lambda answer: 1, lambda answer: answer.prompt_tokens):
        loads: Counter[str | None] = Counter()
        for answer in answers:
            loads[answer.engine] += weigh(answer)
        assert len(loads) == 2
        assert max(loads.values()) <= 1.25 * sum(loads.values()) / 2, (told, loads)
