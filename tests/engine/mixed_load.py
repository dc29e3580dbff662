"""200 prompts that share, evict, come back from the host, are aborted and end workflows, under plans made by chance."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

from cache_actor.messages import EnginePlan, PrefetchOrder, encode
from cache_actor.policies import VALUE_ONE

if TYPE_CHECKING:
    from engine_under_test import EngineUnderTest


async def mixed_load(engine: EngineUnderTest) -> dict[str, str]:
    """The greedy answer to each of the mixed prompts, five at a time."""
    prompts, source = mixed_prompts(), random.Random(3)
    names, answers = list(prompts), {}
    for start in range(0, len(names), 5):
        engine.plan += 1
        await engine.plans.apply(encode(random_plan(source, engine.plan)))
        batch = [answer(engine, names[i], prompts[names[i]], i) for i in range(start, start + 5)]
        answers.update(await asyncio.gather(*batch))
    return answers


async def answer(engine: EngineUnderTest, name: str, prompt: list[int], index: int) -> tuple[str, str]:
    who = {"workflow": f"w{index % 17}", "agent": f"a{index % 3}", "final": index % 11 == 0}
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
    if index % 13 == 0:  # somebody asks the same and leaves
        parts = engine.parts({**body, "stream": True, "max_tokens": 400, "ignore_eos": True}, "completion")
        await anext(parts)
        await parts.aclose()  # type: ignore[attr-defined]
    reply = await anext(engine.parts(body, "completion", **who))
    return name, json.loads(reply.body)["choices"][0]["text"]  # type: ignore[union-attr]


def tokens(seed: int, count: int) -> list[int]:
    """Different seeds have no beginning in common."""
    source = random.Random(seed)
    return [seed % 1900 + 1, *(source.randrange(1, 2000) for _ in range(count - 1))]


def random_plan(source: random.Random, number: int) -> EnginePlan:
    workflows = [f"w{i}" for i in range(17)]
    tables = {w: {f"a{i}": source.randrange(VALUE_ONE) for i in range(3)} for w in source.sample(workflows, 5)}
    orders = [
        PrefetchOrder(number * 10 + i, source.choice(workflows), f"a{i}", source.randrange(VALUE_ONE), 500)
        for i in range(3)
    ]
    policy = {20: "lookahead", 30: "reuse"}.get(number % 40)
    return EnginePlan(number, 5.0, source.sample(workflows, 1), dict(tables), orders, policy, {})


def mixed_prompts() -> dict[str, list[int]]:
    source = random.Random(7)
    anchors = [tokens(100 + i, 120) for i in range(4)]
    contexts = [tokens(200 + i, 150) for i in range(12)]
    prompts: dict[str, list[int]] = {}
    for i in range(200):
        prompt = source.choice(anchors) + source.choice(contexts)[: source.randrange(20, 150)]
        prompts[f"prompt-{i}"] = prompt + tokens(source.randrange(60), source.randrange(1, 80))
    return prompts
