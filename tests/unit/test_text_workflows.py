"""The generated workflows of the text experiment: the text decides their branches, and nothing else does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.text_workflows import NEEDS, PLANNER, REVIEWER, SPECIALISTS, VERDICTS, TextWorkflow, generate

seeds = st.integers(0, 2**32)


def openers(sentences: tuple[str, ...]) -> list[str]:
    """The sentences as far as they are the same in every prompt."""
    return [sentence.split("{")[0] for sentence in sentences]


def named(text: str, choices: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [choice for choice, sentences in choices.items() if any(part in text for part in openers(sentences))]


@given(seeds)
def test_the_text_of_a_request_names_the_next_agent_and_that_of_a_report_the_verdict(seed: int) -> None:
    for workflow in generate(4, seed):
        for place, call in enumerate(workflow.calls):
            text = call.messages[-1][1]
            last = place == len(workflow.calls) - 1
            if call.agent == PLANNER:
                assert named(text, NEEDS) == [workflow.calls[place + 1].agent]
            elif call.agent == REVIEWER:
                assert named(text, VERDICTS) == ["done" if last else "again"]


@given(seeds)
def test_all_calls_have_the_same_numbers_and_no_times(seed: int) -> None:
    traces = [workflow.trace(np.zeros((len(workflow.calls), 1), np.float16)) for workflow in generate(4, seed)]
    calls = [call for trace in traces for call in trace.calls]
    assert len({(call.prompt_tokens, call.output_tokens, call.start_s, call.end_s, call.tool) for call in calls}) == 1


@given(seeds)
def test_equal_seeds_give_equal_workflows(seed: int) -> None:
    assert generate(3, seed) == generate(3, seed)


def rounds(workflows: list[TextWorkflow]) -> list[list[str]]:
    """The specialists of each workflow, one a round."""
    return [[call.agent for call in workflow.calls if call.agent in SPECIALISTS] for workflow in workflows]


def test_branches_are_balanced_whatever_came_before() -> None:
    chosen = rounds(generate(4000, seed=1))
    firsts = Counter(agents[0] for agents in chosen)
    assert all(0.22 < firsts[agent] / len(chosen) < 0.28 for agent in SPECIALISTS)
    for length in (1, 2, 3):
        reached = [agents for agents in chosen if len(agents) >= length]
        assert 0.44 < sum(len(agents) > length for agents in reached) / len(reached) < 0.56
    pairs = Counter(pair for agents in chosen for pair in itertools.pairwise(agents))
    assert all(0.04 < pairs[one, two] / pairs.total() < 0.09 for one in SPECIALISTS for two in SPECIALISTS)
    ends = {agent: [len(agents) == 1 for agents in chosen if agents[0] == agent] for agent in SPECIALISTS}
    assert all(0.44 < sum(ended) / len(ended) < 0.56 for ended in ends.values())
