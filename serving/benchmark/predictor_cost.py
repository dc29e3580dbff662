"""`forecache bench predictor`: what forecasting costs, in time and in memory."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch

from predictor_actor.base import Call, Prefix, WorkflowTrace, prefixes_of
from predictor_actor.graphsage import Calibration, GraphSage
from predictor_actor.learning import Learning
from predictor_actor.markov import Markov
from predictor_actor.model import Forecaster, ModelConfig
from predictor_actor.train import TrainConfig, train
from serving.benchmark.budgets import Budget, Figures

BUDGETS = (
    Budget("batch1024_ms", "ms, 1,024 workflows in one batch", 15),
    Budget("batch16_ms", "ms, 16 workflows", 2),
    Budget("train_1000_s", "s, 1,000 traces", 120),
    Budget("state_bytes_24_agents", "bytes that a replica has learned online of 24 agents", 20 * 1024),
    Budget("rss_mb", "MB resident, with Ray Serve loaded and a batch forecast", 700),
)
AGENTS = 24
TRACES = 1000

Progress = Callable[[str], None]


def made_up(count: int, seed: int = 0) -> list[WorkflowTrace]:
    """Workflows over a call graph of AGENTS agents: each is followed by one of three, the first of them mostly."""
    rng = random.Random(seed)
    followers = [[rng.randrange(AGENTS) for _ in range(3)] for _ in range(AGENTS)]
    traces = []
    for number in range(count):
        agent, calls = rng.randrange(AGENTS), []
        for place in range(rng.randrange(5, 40)):
            start = 1.5 * place
            calls.append(
                Call(f"agent-{agent}", 500 + 300 * place, rng.randrange(10, 300), start, start + rng.uniform(0.2, 1.2))
            )
            agent = rng.choices(followers[agent], (6, 3, 1))[0]
        traces.append(WorkflowTrace(str(number), tuple(calls)))
    return traces


def measure(rounds: int, progress: Progress) -> Figures:
    """All figures, in the order of BUDGETS; times are medians of `rounds`, on one compute thread."""
    progress(f"training on {TRACES} traces")
    traces = made_up(TRACES)
    trained = train(traces, TrainConfig())
    prefixes = [prefix for trace in traces for prefix in prefixes_of(trace)]
    batch = random.Random(1).sample(prefixes, 1024)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress("forecasting")
        large, small = _median_ms(trained.predictor, batch, rounds), _median_ms(trained.predictor, batch[:16], rounds)
    finally:
        torch.set_num_threads(before)
    progress("memory")
    return {
        "batch1024_ms": large,
        "batch16_ms": small,
        "train_1000_s": trained.seconds,
        "state_bytes_24_agents": float(_state_bytes(traces)),
        "rss_mb": _resident_mb(),
    }


def _state_bytes(traces: Sequence[WorkflowTrace]) -> int:
    """What a replica has learned online: the chain that serves, and the one that candidates are judged by."""
    learning = Learning()
    learning.replay(traces)
    learned: int = learning.status()["state_bytes"]
    return learned


def resident_mb() -> float:
    """Of this process, once it has forecast a batch as a replica of Ray Serve would."""
    import psutil
    import ray.serve  # noqa: F401

    traces = made_up(60)
    markov = Markov(TrainConfig().order)
    for trace in traces:
        markov.learn(trace)
    predictor = GraphSage(Forecaster(ModelConfig()), Calibration(), markov, "untrained")
    predictor.forecast([prefix for trace in traces for prefix in prefixes_of(trace)][:1024])
    return float(psutil.Process().memory_info().rss / 1e6)


def _resident_mb() -> float:
    """That of a process of its own, which has loaded nothing else."""
    code = "from serving.benchmark.predictor_cost import resident_mb; print(resident_mb())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _median_ms(predictor: GraphSage, batch: Sequence[Prefix], rounds: int) -> float:
    seconds = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        predictor.forecast(batch)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[3:])
