"""`forecache bench cache-cost`: what the cache's ledger and victim order cost, alone and inside an engine.

The small figures come from `cache_parts.py`; the ratios from two engines side by side, one with Forecache's cache and
one with SGLang's own, which take turns.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import Any, Literal

from serving.benchmark.budgets import Budget, Figures
from serving.benchmark.cache_parts import LARGE, SMALL, Progress, measure_parts
from serving.benchmark.engine_process import EngineProcess, Job
from serving.config import AppConfig, CacheConfig, ModelConfig

Backend = Literal["forecache", "sglang"]

AT_ONCE = 32
TURNS = 8
SINGLE_CALLS = 80
# An order kept up to date is O(log n); what is beyond it is a processor's cache that 100,000 leaves do not fit in.
GROWTH_BUDGET = 1.5 * math.log(LARGE) / math.log(SMALL)

BUDGETS = (
    Budget("throughput_ratio", "× stock", 0.98, at_least=True),
    Budget("throughput_ratio_hicache", "× stock", 0.98, at_least=True),
    Budget("ttft_ratio", "× stock", 1.02),
    Budget("ttft_ratio_hicache", "× stock", 1.02),
    Budget("touch_us", "µs a node", 2),
    Budget("update_50_nodes_us", "µs", 20),
    Budget("victim_us_1k", "µs", 50),
    Budget("victim_us_100k", "µs", 50),
    Budget("victim_growth", "× from 1k to 100k", GROWTH_BUDGET),
    Budget("ledger_bytes_per_node", "bytes", 400),
    Budget("reuse_touch_us", "µs a node", 3),
    Budget("reuse_victim_us_1k", "µs", 50),
    Budget("reuse_victim_us_100k", "µs", 50),
    Budget("reuse_learned_kib", "KiB", 1024),
    Budget("reuse_step_percent", "% of the engine's time", 1),
)


def measure_engines(starts: int, rounds: int, requests: int, hicache: bool, progress: Progress) -> Figures:
    """Throughput and time to first token, forecache over stock: medians of the ratios of all rounds of all starts.

    Two starts of one engine differ by more than two rounds of a start do, and of two engines that which is started
    first has been the faster one: the first is now the one, now the other.

    Raises:
        EngineProcessError: an engine did not start or ended.
    """
    kind = "with HiCache" if hicache else "without HiCache"
    samples: dict[str, list[float]] = defaultdict(list)
    for start in range(starts):
        told = f"engines {kind}, start {start + 1} of {starts}: "
        progress(told + "two are coming up")
        with ExitStack() as stack:
            engines: dict[Backend, EngineProcess] = {}
            order: tuple[Backend, ...] = ("sglang", "forecache") if start % 2 else ("forecache", "sglang")
            for backend in order:
                engines[backend] = stack.enter_context(EngineProcess(_config(backend, hicache, requests)))
            for engine in engines.values():
                engine.ready()
            for number in range(rounds + 1):
                progress(told + (f"round {number} of {rounds}" if number else "warming up"))
                ratios = _round(engines["forecache"], engines["sglang"], number, requests)
                for name, ratio in ratios.items() if number else ():
                    samples[name].append(ratio)
    suffix = "_hicache" if hicache else ""
    figures = {f"{name}_ratio{suffix}": statistics.median(ratios) for name, ratios in samples.items()}
    return figures | {f"{name}_spread{suffix}": max(ratios) - min(ratios) for name, ratios in samples.items()}


def _round(ours: EngineProcess, stock: EngineProcess, number: int, requests: int) -> Figures:
    """Ratios of one round. The engines take turns every few calls, and at who goes first: what else runs hits both."""
    seconds: dict[EngineProcess, float] = defaultdict(float)
    cpu: dict[EngineProcess, float] = defaultdict(float)
    ttft: dict[EngineProcess, float] = defaultdict(float)
    for turn in range(TURNS):
        pair = (ours, stock) if (turn + number) % 2 else (stock, ours)
        seed = 2 * (number * TURNS + turn)
        for engine in pair:
            result = engine.run(Job(seed, max(1, requests // TURNS), AT_ONCE))
            seconds[engine] += result.seconds
            cpu[engine] += result.cpu_seconds
        for engine in pair:
            ttft[engine] += engine.run(Job(seed + 1, SINGLE_CALLS // TURNS, at_once=1)).ttft_s
    return {
        "throughput": seconds[stock] / seconds[ours],
        "ttft": ttft[ours] / ttft[stock],
        "cpu": cpu[ours] / cpu[stock],
    }


def _config(backend: Backend, hicache: bool, requests: int) -> AppConfig:
    engine: dict[str, Any] = {
        "max_total_tokens": requests * 256 + 8192,  # no pressure: every call of a job stays
        "max_running_requests": AT_ONCE,
        "context_length": 1500,
        "dtype": "float32",
    }
    if hicache:
        engine |= {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
    return AppConfig(
        # On one core it computes about as many tokens a second as a 14B model on a workstation GPU. With a smaller one
        # the engine would be measured where its scheduler, and not the model, is what it waits for.
        model=ModelConfig(source="random-qwen3", name="random"),
        cache=CacheConfig(backend=backend, policy="reuse", learned_dir=""),
        engine=engine,
    )


def measure(rounds: int, requests: int, starts: int, progress: Progress) -> Figures:
    """All figures, or with no `starts` of engines those that need none, in the order of `BUDGETS` and then the rest.

    Raises:
        EngineProcessError: an engine did not start or ended.
    """
    figures = measure_parts(rounds, progress)
    for hicache in (False, True) if starts else ():
        figures |= measure_engines(starts, rounds, requests, hicache, progress)
    names = [budget.name for budget in BUDGETS if budget.name in figures]
    return {name: figures[name] for name in [*names, *(name for name in figures if name not in names)]}
