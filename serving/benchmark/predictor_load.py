"""`forecache bench predictor --load`: two replicas on a Ray of their own, under an open stream of requests."""

from __future__ import annotations

import asyncio
import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from predictor_actor.base import Prefix, prefixes_of
from predictor_actor.requests import MAX_BYTES, Request, decode_answer, encode_request
from serving.app import predictor_deployment
from serving.benchmark.budgets import Budget, Figures
from serving.benchmark.predictor_cost import made_up
from serving.config import AppConfig
from serving.link import Address, Link

BUDGETS = (
    Budget("load_p50_ms", "ms, half of the requests, as their sender sees it", 50),
    Budget("load_p99_ms", "ms, 99 % of the requests", 50),
    Budget("load_errors", "requests without a valid answer", 0),
)
REPLICAS = 2
REQUESTS_PER_S = 500
SECONDS = 20.0
SIZES = (1, 2, 4, 8, 16, 32, 64)
_WARM_UP_S = 3.0

Progress = Callable[[str], None]


def measure(progress: Progress) -> Figures:
    """Latencies from when a request was due to when its answer was decoded, so that a late sender does not hide any.

    Each request is of workflows at random places of their paths; how many is one of SIZES, each as likely.
    """
    import ray
    from ray import serve

    progress("starting Ray")
    predictor = {"enabled": True, "num_replicas": REPLICAS, "traces_dir": "", "learn": False}
    application = predictor_deployment(AppConfig.model_validate({"predictor": predictor}))
    assert application is not None
    ray.init("local", num_cpus=REPLICAS, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"location": "NoServer"})
        handle = serve.run(application, name="predictor", route_prefix=None)
        progress(f"{REQUESTS_PER_S} requests a second for {SECONDS:g} s")
        return asyncio.run(_load(handle))
    finally:
        serve.shutdown()
        ray.shutdown()


async def _links(handle: Any) -> list[Link]:
    """One to each replica; which of them a handle asks is chance."""
    found: set[Address] = set()
    while len(found) < REPLICAS:
        found.add(await handle.address.remote())

    async def told(address: Address) -> Address:
        return address

    return [Link(functools.partial(told, address), MAX_BYTES) for address in found]


async def _load(handle: Any) -> Figures:
    requests, links = _requests(), await _links(handle)
    rng = random.Random(2)
    clock = time.perf_counter
    took: list[float] = []
    inside: list[float] = []
    late: list[float] = []
    errors = 0

    async def one(link: Link, data: bytes, rows: int, due: float, counts: bool) -> None:
        nonlocal errors
        try:
            answer = decode_answer(await link.ask(data))
            right = len(answer.forecasts) == rows
        except Exception:  # whatever it is, it is counted
            right = False
        if counts:
            errors += not right
            took.append(clock() - due)
            if right:
                inside.append(answer.seconds)

    tasks = set()
    start = clock()
    for number in range(int(REQUESTS_PER_S * (_WARM_UP_S + SECONDS))):
        due = start + number / REQUESTS_PER_S
        if (wait := due - clock()) > 0:
            await asyncio.sleep(wait)
        counts = due - start >= _WARM_UP_S
        if counts:
            late.append(clock() - due)
        data, rows = rng.choice(requests)
        task = asyncio.create_task(one(links[number % REPLICAS], data, rows, due, counts))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for link in links:
        link.close()
    return {
        "load_p50_ms": 1e3 * statistics.median(took),
        "load_p99_ms": 1e3 * _p99(took),
        "load_errors": float(errors),
        "load_replica_p50_ms": 1e3 * statistics.median(inside),
        "load_replica_p99_ms": 1e3 * _p99(inside),
        "load_sender_late_p99_ms": 1e3 * _p99(late),
    }


def _requests() -> list[tuple[bytes, int]]:
    """Encoded requests and their sizes, all sizes equally often."""
    rng = random.Random(1)
    prefixes: list[Prefix] = [prefix for trace in made_up(300) for prefix in prefixes_of(trace)]
    return [(encode_request(Request(rng.sample(prefixes, size), [], {})), size) for size in SIZES for _ in range(20)]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]
