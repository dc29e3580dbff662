"""`forecache bench overhead`: the same load on bare SGLang servers and on Forecache, in turns.

Bare servers share the load by lanes, as a client would that knows of each; Forecache places the workflows itself. Both
have the same engine arguments; only what is around the engine, and the cache that knows workflows, differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from serving.benchmark.bare_server import BareServer
from serving.benchmark.driver.call import Answer
from serving.benchmark.driver.engines import Fleet, Target, free_port
from serving.benchmark.driver.load import Load, LoadOptions
from serving.benchmark.driver.plan_desk import PlanDesk
from serving.benchmark.driver.planner import Planner
from serving.benchmark.driver.points import Variant
from serving.benchmark.workloads import Lanes, Tokens, Workflow, Workload, make_workload
from serving.config import AppConfig

WARM_UP = 2
# Small calls, so that what is around the engine weighs as much as it ever does; a pool in which nothing is evicted.
WORKLOAD = {"scale": 0.25, "tool_s": 0.0}
CONFIG: dict[str, Any] = {
    "model": {"source": "random-qwen3"},
    "deployment": {"cpu_threads": 1, "num_cpus": 1},
    "engine": {"dtype": "float32", "max_total_tokens": 80_000, "chunked_prefill_size": 2048, "context_length": 16384},
}


@dataclass(frozen=True, slots=True)
class Side:
    """One round of one side: seconds it took, mean seconds to the first token, tokens a second, failed calls."""

    seconds: float
    ttft_s: float
    tokens_per_s: float
    failed: int


def overhead(engines: int, workflows: int, lanes: int, rounds: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Medians over rounds of both sides, their ratio of tokens a second, and the added time to first token.

    Args:
        engines: on each side.
        lanes: workflows at once, over all engines; at least one for each.

    Raises:
        ValueError: there are not as many lanes and workflows as engines.
        EnginesError, BareServerError: a side does not start.
    """
    from serving.engine_args import engine_arguments
    from serving.models import prepare_model

    if min(lanes, workflows) < engines:
        raise ValueError(f"{lanes} lanes and {workflows} workflows leave some of {engines} engines idle; give more")
    config = AppConfig.model_validate(CONFIG | {"deployment": CONFIG["deployment"] | {"num_replicas": engines}})
    stock = AppConfig.model_validate(CONFIG | {"cache": {"backend": "sglang"}})
    arguments = engine_arguments(stock, prepare_model(config.model), on_cpu=_on_cpu())
    found: dict[str, list[Side]] = {"bare": [], "forecache": []}
    with contextlib.ExitStack() as stack:
        say("starting bare SGLang")
        servers = [stack.enter_context(BareServer(arguments, free_port(), 1)) for _ in range(engines)]
        say("starting Forecache")
        target = stack.enter_context(Fleet(1)).target(Variant("forecache", config))
        urls = {"bare": [server.url for server in servers], "forecache": [target.url]}
        for number in range(-1, rounds):  # the first warms up
            order = list(urls) if number % 2 else list(reversed(urls))
            for name in order:
                say(f"round {number + 1} of {rounds}: {name}" if number >= 0 else f"warming up {name}")
                count = WARM_UP * engines if number < 0 else workflows
                workload = make_workload("hover", number + 1, workflows=count, **WORKLOAD)
                side = asyncio.run(_play(urls[name], workload, lanes, target, f"{name}-{number}"))
                if number >= 0:
                    found[name].append(side)
    return _compared(found, engines, workflows, lanes)


async def _play(urls: Sequence[str], workload: Workload, lanes: int, target: Target, suffix: str) -> Side:
    """A workload dealt out to endpoints, each with its part of the lanes."""
    answers: list[Answer] = []
    options = LoadOptions(target.model, suffix, False, 300.0, 30.0)

    def on_call(workflow: Workflow, index: int, answer: Answer) -> None:
        answers.append(answer)

    async with contextlib.AsyncExitStack() as stack:
        planner = Planner(None, PlanDesk(itertools.count(1), False), [], target.send)
        limits = httpx.Limits(max_connections=None)
        # The salt makes every round's text new: what an earlier round left in a cache is of no use to it.
        tokens = Tokens(2048, 10, salt=suffix.rpartition("-")[2])
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, limits=limits, timeout=None))
            for url in urls
        ]
        loads = [Load(client, tokens, planner, options, on_call) for client in clients]
        parts = dealt(workload, lanes, len(urls))
        start = time.monotonic()
        await asyncio.gather(
            *(load.play(part, its_lanes) for load, (part, its_lanes) in zip(loads, parts, strict=True))
        )
        seconds = time.monotonic() - start
    done = [answer for answer in answers if answer.error is None]
    firsts = [answer.first_token_s - answer.sent_s for answer in done if answer.first_token_s is not None]
    tokens_done = sum(answer.prompt_tokens + answer.output_tokens for answer in done)
    return Side(seconds, statistics.fmean(firsts or [0.0]), tokens_done / seconds, len(answers) - len(done))


def dealt(workload: Workload, lanes: int, endpoints: int) -> list[tuple[Workload, Lanes]]:
    """The workflows in turn to each endpoint, and the lanes as evenly as they go; at least one each."""
    return [
        (
            Workload(workload.name, workload.workflows[at::endpoints]),
            Lanes(lanes // endpoints + (at < lanes % endpoints)),
        )
        for at in range(endpoints)
    ]


def _compared(found: dict[str, list[Side]], engines: int, workflows: int, lanes: int) -> dict[str, Any]:
    sides = {
        name: {
            "seconds": statistics.median(side.seconds for side in each),
            "tokens_per_s": statistics.median(side.tokens_per_s for side in each),
            "ttft_s": statistics.median(side.ttft_s for side in each),
            "failed_calls": sum(side.failed for side in each),
        }
        for name, each in found.items()
    }
    pairs = list(zip(found["bare"], found["forecache"], strict=True))
    return {
        "engines": engines,
        "workflows": workflows,
        "lanes": lanes,
        "rounds": len(pairs),
        **sides,
        "throughput_ratio": statistics.median(ours.tokens_per_s / bare.tokens_per_s for bare, ours in pairs),
        "added_ttft_s": statistics.median(ours.ttft_s - bare.ttft_s for bare, ours in pairs),
    }


def _on_cpu() -> bool:
    from sglang.srt.platforms import current_platform

    from serving.sglang_plugin.platform import ForecacheCpuPlatform

    return isinstance(current_platform, ForecacheCpuPlatform)
