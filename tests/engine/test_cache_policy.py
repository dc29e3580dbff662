"""The `forecache` backend in a real engine under pressure: who goes, who stays, and that no answer changes."""

from __future__ import annotations

import asyncio
import random

from conftest import DEVICE_TOKENS, EngineUnderTest

AGENT_TOKENS = 200
OWN_TOKENS = 300


def tokens(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1, 2000) for _ in range(count)]


def ask(engine: EngineUnderTest, prompt: list[int], workflow: str, agent: str = "agent", final: bool = False) -> int:
    """Makes a call; the prompt tokens that were computed for it."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    status, answer = engine.answer(body, "completion", workflow=workflow, agent=agent, final=final)
    assert status == 200, answer
    usage = answer["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["device"])


def fill(engine: EngineUnderTest, count: int, first_seed: int = 1000) -> None:
    """Pressure: other living workflows, each with a prompt of its own."""
    for i in range(count):
        ask(engine, tokens(first_seed + i, OWN_TOKENS), f"filler-{first_seed + i}")


class TestLifecycle:
    def test_an_ended_workflows_nodes_go_first_though_they_are_the_most_recent(self, engine: EngineUnderTest) -> None:
        living, ended = tokens(1, OWN_TOKENS), tokens(2, OWN_TOKENS)
        ask(engine, living, "living")
        fill(engine, 3)
        ask(engine, ended, "ended", final=True)
        fill(engine, (DEVICE_TOKENS - 5 * OWN_TOKENS) // OWN_TOKENS + 1, first_seed=2000)
        assert ask(engine, living, "living") <= 1
        assert ask(engine, ended, "again") >= OWN_TOKENS - 1

    def test_what_is_shared_with_a_living_workflow_stays(self, engine: EngineUnderTest) -> None:
        anchor = tokens(3, AGENT_TOKENS)
        ask(engine, anchor + tokens(4, 50), "living")
        fill(engine, 3)
        ask(engine, anchor + tokens(5, 50), "ended", final=True)
        fill(engine, 4, first_seed=2000)
        assert ask(engine, anchor + tokens(6, 20), "third") <= 20 + 1

    def test_an_anchor_of_ended_workflows_outlives_their_private_nodes(self, engine: EngineUnderTest) -> None:
        anchor = tokens(7, AGENT_TOKENS)
        private = [tokens(8, 250), tokens(9, 250)]
        fill(engine, 3)
        for i, own in enumerate(private):
            ask(engine, anchor + own, f"ended-{i}", final=True)
        fill(engine, 3, first_seed=2000)
        assert ask(engine, anchor + tokens(10, 20), "next") <= 20 + 1
        assert ask(engine, anchor + private[0], "other") >= 249


class TestEquality:
    def test_answers_are_those_of_a_plain_engine(self, engine: EngineUnderTest, plain_answers: dict[str, str]) -> None:
        """200 mixed prompts: shared prefixes, evictions, host hits, aborted calls, workflows that end."""
        asked = mixed_prompts()

        async def run(name: str, prompt: list[int], index: int) -> tuple[str, str]:
            who = {"workflow": f"w{index % 17}", "agent": f"a{index % 3}", "final": index % 11 == 0}
            body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
            if index % 13 == 0:
                parts = engine.parts({**body, "stream": True, "max_tokens": 400, "ignore_eos": True}, "completion")
                await anext(parts)
                await parts.aclose()  # type: ignore[attr-defined]
            reply = await anext(engine.parts(body, "completion", **who))
            return name, reply.body.decode()  # type: ignore[union-attr]

        async def all_of_them() -> dict[str, str]:
            answers: dict[str, str] = {}
            names = list(asked)
            for start in range(0, len(names), 5):
                batch = [run(name, asked[name], start + i) for i, name in enumerate(names[start : start + 5])]
                answers.update(await asyncio.gather(*batch))
            return answers

        import json

        answers = engine.run(all_of_them(), timeout=300)
        said = {name: json.loads(body)["choices"][0]["text"] for name, body in answers.items()}
        assert said == plain_answers


def mixed_prompts() -> dict[str, list[int]]:
    source = random.Random(7)
    anchors = [tokens(100 + i, 120) for i in range(4)]
    contexts = [tokens(200 + i, 150) for i in range(12)]
    prompts: dict[str, list[int]] = {}
    for i in range(200):
        prompt = source.choice(anchors) + source.choice(contexts)[: source.randrange(20, 150)]
        prompts[f"prompt-{i}"] = prompt + tokens(source.randrange(60), source.randrange(1, 80))
    return prompts
