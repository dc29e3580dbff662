"""`forecache bench overhead`: the same load on bare `sglang.launch_server` and on Forecache, side by side, in turns.

The prompts share nothing, so that no cache policy can help: what is left is what Forecache costs between the client and
the engine. Both run the same engine arguments; with two engines the bare servers are called in rotation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from serving.benchmark.driver.call import body_of, make_call
from serving.benchmark.driver.engines import EnginesError, Fleet
from serving.benchmark.driver.points import Variant
from serving.config import AppConfig

START_LIMIT_S = 180.0
STOP_LIMIT_S = 20.0
CALL_LIMIT_S = 120.0
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 8
AT_ONCE = 16
SINGLE_CALLS = 20
_TOKEN_IDS = range(10, 290)

Progress = Callable[[str], None]


class OverheadError(RuntimeError):
    """A server did not start, or a call failed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: where its calls go, in rotation."""

    name: str
    urls: tuple[str, ...]
    model: str


def app_config(engines: int) -> AppConfig:
    """The engine that both sides run: a tiny random model, so that what is beside the model weighs most."""
    return AppConfig.model_validate(
        {
            "model": {
                "source": "random-qwen3",
                "name": "random",
                "random": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32},
            },
            "deployment": {"num_replicas": engines, "cpu_threads": 1, "num_cpus": 0.5},
            "engine": {
                "dtype": "float32",
                "max_total_tokens": 65536,
                "max_running_requests": 2 * AT_ONCE,
                "context_length": 1500,
                "sleep_on_idle": True,
            },
        }
    )


@contextlib.contextmanager
def bare_servers(config: AppConfig) -> Iterator[Side]:
    """As many `sglang.launch_server` as the config has replicas, each with its engine arguments.

    Raises:
        OverheadError: one did not come up; the message has the end of its log.
    """
    from serving.engine_args import engine_arguments
    from serving.models import prepare_model

    arguments = engine_arguments(config, prepare_model(config.model), on_cpu=True)
    arguments = {name: value for name, value in arguments.items() if value is not None}
    arguments |= {"radix_cache_backend": None, "served_model_name": config.model.served_name, "host": "127.0.0.1"}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forecache-overhead-")))
        servers = [
            stack.enter_context(_server(folder, number, arguments, config.deployment.cpu_threads or 1))
            for number in range(config.deployment.num_replicas)
        ]
        for url, process, log in servers:
            _await_server(url, process, log)
        yield Side("sglang", tuple(url for url, _, _ in servers), config.model.served_name)


@contextlib.contextmanager
def _server(
    folder: Path, number: int, arguments: dict[str, Any], threads: int
) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    port, config, log = _free_port(), folder / f"{number}.yaml", folder / f"{number}.log"
    given = {name.replace("_", "-"): value for name, value in arguments.items() if value not in (None, False)}
    config.write_text(yaml.safe_dump(given | {"port": port}))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", "--config", str(config)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}/v1/", process, log
    finally:
        _stop(process)


def _await_server(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}models", timeout=2).status_code == httpx.codes.OK:
                return
        time.sleep(0.5)
    raise OverheadError(f"sglang.launch_server did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.terminate()
        _, alive = psutil.wait_procs(family, STOP_LIMIT_S)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def measure_overhead(engines: int, rounds: int, calls: int, progress: Progress) -> dict[str, float]:
    """Throughput of Forecache over that of bare servers, and the time to first token that it adds: medians of rounds.

    Raises:
        OverheadError, EnginesError: a side did not start, or a call failed.
    """
    config = app_config(engines)
    progress(f"{engines} engine(s): starting bare SGLang")
    with bare_servers(config) as bare, Fleet(most=1) as fleet:
        progress(f"{engines} engine(s): starting Forecache")
        target = fleet.target(Variant("overhead", config))
        ours = Side("forecache", (target.url,), target.model)
        samples: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds + 1):
            progress(f"{engines} engine(s): " + (f"round {number} of {rounds}" if number else "warming up"))
            found: dict[str, tuple[float, float]] = {}
            for side in (ours, bare) if number % 2 else (bare, ours):
                found[side.name] = asyncio.run(_load(side, calls, seed=number))
            if number:
                (our_rate, our_ttft), (bare_rate, bare_ttft) = found["forecache"], found["sglang"]
                samples["throughput_ratio"].append(our_rate / bare_rate)
                samples["added_ttft_ms"].append((our_ttft - bare_ttft) * 1e3)
                samples["calls_per_s"].append(our_rate)
                samples["calls_per_s_sglang"].append(bare_rate)
                samples["ttft_ms_sglang"].append(bare_ttft * 1e3)
    return {f"{name}_{engines}": statistics.median(values) for name, values in samples.items()}


async def _load(side: Side, calls: int, seed: int) -> tuple[float, float]:
    """Calls in a second with `AT_ONCE` of them under way, and mean seconds to the first token of single calls."""
    rng = random.Random(f"{side.name} {seed}")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, limits=limits, timeout=None))
            for url in side.urls
        ]
        turn = itertools.cycle(clients)
        left = iter(range(calls))

        async def call(number: int) -> float:
            body = body_of(side.model, rng.choices(_TOKEN_IDS, k=PROMPT_TOKENS), OUTPUT_TOKENS, None)
            headers = {"x-workflow-id": f"overhead-{seed}-{number}", "x-agent-name": "load", "x-workflow-final": "true"}
            answer = await make_call(next(turn), body, headers, lambda engine: None, CALL_LIMIT_S)
            if answer.error is not None or answer.first_token_s is None:
                raise OverheadError(f"{side.name}: {answer.error or 'no token came'}")
            return answer.first_token_s - answer.sent_s

        async def lane() -> None:
            for number in left:
                await call(number)

        start = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
        rate = calls / (time.perf_counter() - start)
        ttft = statistics.mean([await call(calls + number) for number in range(SINGLE_CALLS)])
        return rate, ttft


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


__all__ = ["EnginesError", "OverheadError", "measure_overhead"]
