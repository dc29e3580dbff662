"""Workflows whose branches only the text of their prompts decides: what the text signal is measured on.

A planner reads a request and calls one of four specialists; a reviewer reads the report and either sends the work back
to the planner or is the last. Both branches are drawn independently of everything before them, and all calls have the
same token counts and no times, so that neither the path nor the numbers say anything about a branch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from predictor_actor.base import Call, WorkflowTrace
from predictor_actor.trace_import import Label, labelled
from serving.benchmark.hidden_states import Message, States

PLANNER, REVIEWER = "planner", "reviewer"
PROMPT_TOKENS, OUTPUT_TOKENS = 96, 32


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call with its prompt.

    Attributes:
        messages: (role, content), oldest first.
        tool: what its answer asks for, None if nothing or not known.
    """

    agent: str
    messages: tuple[Message, ...]
    prompt_tokens: int = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class TextWorkflow:
    """A workflow that has ended, with the prompts of its calls."""

    workflow: str
    calls: tuple[TextCall, ...]

    def trace(self, states: States, label: Label = "agent") -> WorkflowTrace:
        """What a predictor is told of it.

        Args:
            states: (calls, size), the hidden state of each call's prompt.
            label: what names a caller.
        """
        told = (
            Call(
                labelled(call.agent, None, call.tool, label),
                call.prompt_tokens,
                call.output_tokens,
                tool=call.tool,
                hidden=state.tobytes(),
            )
            for call, state in zip(self.calls, states, strict=True)
        )
        return WorkflowTrace(self.workflow, tuple(told))


NAMES = ("Amara", "Björn", "Chen", "Dalia", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kofi", "Lucía")
TOPICS = (
    "the ferry timetable", "our solar panels", "the school library", "coffee exports", "the new clinic",
    "river flooding", "bicycle rentals", "the opera season", "wheat prices", "the metro extension",
    "night shifts", "the apple harvest", "museum visitors", "parcel delivery", "the ski resort",
)  # fmt: skip
OPENINGS = (
    "Hello, {name} here about {topic}.",
    "This is for {name}, who looks after {topic}.",
    "We talked about {topic} on day {number}.",
    "Case {number} concerns {topic}.",
    "{name} asked me again about {topic}.",
    "Regarding {topic}, reference {number}:",
)
NEEDS = {
    "researcher": (
        "Please find out what newspapers and studies have said.",
        "I need sources: who has published on it, and where?",
        "Look up the latest reports and list where they come from.",
        "Could somebody search the archives for earlier cases?",
        "Which articles exist already? Collect the links.",
        "Dig up background reading that we can cite.",
    ),
    "programmer": (
        "Please fix the script, it crashes with a null pointer.",
        "I need a small Python function that parses the log file.",
        "The unit tests fail since the last commit; debug them.",
        "Could somebody refactor the module and its API?",
        "Write a command line tool that reads the CSV.",
        "The build breaks on the compiler's new version, repair the code.",
    ),
    "analyst": (
        "Please work out the average cost and its variance.",
        "I need the totals: add up the quarters and give the growth in percent.",
        "What is the probability that we exceed {number}? Calculate it.",
        "Could somebody solve for the break-even quantity?",
        "Compute the median of the figures and how it has changed.",
        "Estimate the interest on {number} over six years.",
    ),
    "translator": (
        "Please put the brochure into French.",
        "I need the letter in Japanese by tomorrow.",
        "The Spanish version reads badly; render it anew from English.",
        "Could somebody say this in German, politely?",
        "Turn the leaflet from Arabic into Portuguese.",
        "Our guests speak Italian only: we need the text in their language.",
    ),
}
SPECIALISTS = tuple(NEEDS)
VERDICTS = {
    "again": (
        "Half of it is missing, so it cannot go out like this.",
        "The result is wrong in two places.",
        "There are mistakes, and the main question has no answer.",
        "The client sent it back with complaints.",
        "It was started, yet most of the work is still open.",
        "None of the checks passed.",
    ),
    "done": (
        "Everything is there and it can go out as it is.",
        "The result is right in every place.",
        "There are no mistakes, and the main question is answered.",
        "The client has accepted it with thanks.",
        "It was completed, and nothing is left open.",
        "All of the checks passed.",
    ),
}
CLOSINGS = (
    "Thanks, {name}.",
    "It is due in {number} hours.",
    "Best wishes.",
    "That is all for now.",
    "Call {name} if in doubt.",
)
SYSTEMS = {
    PLANNER: "You plan. Read the request and say which specialist is needed.",
    REVIEWER: "You review. Read the report and say whether the work is finished.",
}
SPECIALIST_SYSTEM = "You are a specialist. Do what the request asks."


def generate(count: int, seed: int) -> list[TextWorkflow]:
    """`count` workflows; equal arguments give equal ones. A reviewer sends work back in half of the cases."""
    rng = random.Random(seed)
    return [TextWorkflow(f"text-{number}", tuple(_calls(rng))) for number in range(count)]


def _calls(rng: random.Random) -> list[TextCall]:
    calls = []
    verdict = "again"
    while verdict == "again":
        specialist = rng.choice(SPECIALISTS)
        verdict = rng.choice(tuple(VERDICTS))
        request = ("user", _wording(rng, NEEDS[specialist]))
        report = ("user", _wording(rng, VERDICTS[verdict]))
        calls += [
            TextCall(PLANNER, (("system", SYSTEMS[PLANNER]), request)),
            TextCall(specialist, (("system", SPECIALIST_SYSTEM), request)),
            TextCall(REVIEWER, (("system", SYSTEMS[REVIEWER]), report)),
        ]
    return calls


def _wording(rng: random.Random, sentences: tuple[str, ...]) -> str:
    text = " ".join((rng.choice(OPENINGS), rng.choice(sentences), rng.choice(CLOSINGS)))
    return text.format(name=rng.choice(NAMES), topic=rng.choice(TOPICS), number=rng.randrange(10, 1000))
