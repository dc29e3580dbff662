"""An engine in a child process that takes jobs over a pipe, so that several engines live side by side.

The child has a session of its own: Ctrl-C reaches the parent alone, which takes the engine down. A child whose parent
is gone sees the pipe end and shuts its engine down itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
import uuid
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import psutil

from cache_actor.messages import RequestIdentity
from serving.benchmark.hidden_states import ReadJob, States, read_states
from serving.config import AppConfig
from serving.processes import end_processes
from serving.run_directory import RunDirectory
from serving.sglang_plugin.channel import EventReceiver, new_address
from serving.sglang_plugin.recorder import kv_hints

CLOSE_LIMIT_S = 20.0
FLUSH_LIMIT_S = 20.0
CALLS_PER_WORKFLOW = 4
_LOG_TAIL = 3000
# Low enough for any vocabulary, and past the special tokens at its start.
_TOKEN_IDS = range(10, 290)


class EngineProcessError(RuntimeError):
    """The engine did not start, or ended during a job; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Job:
    """Calls with prompts that share nothing, on an empty cache; equal jobs have equal prompts.

    prompt_tokens, max_tokens: of each call, in tokens; every call generates its `max_tokens`.
    at_once: calls in flight.
    """

    seed: int
    calls: int
    at_once: int
    prompt_tokens: int = 200
    max_tokens: int = 8


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job took.

    seconds: from the first call to the last answer.
    cpu_seconds: of all the engine's processes; other programs on the machine disturb it less than they do `seconds`.
    ttft_s: mean time to the first token.
    hit_storage: prompt tokens that came from the storage backend.
    """

    seconds: float
    cpu_seconds: float
    ttft_s: float
    hit_storage: int


class EngineProcess:
    """A child with an engine; `ready` waits until it serves. Use as a context manager.

    With `cache.backend: sglang` the engine is SGLang as it is: calls without identity, no recorder in its scheduler.
    """

    def __init__(self, config: AppConfig) -> None:
        handle, log = tempfile.mkstemp(prefix="forecache-bench-", suffix=".log")
        os.close(handle)
        self._log = Path(log)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(theirs, config.model_dump(mode="json"), log))
        self._process.start()
        theirs.close()
        self._serves = False

    def ready(self) -> None:
        """Waits for the engine to serve; some 20 s on a CPU.

        Raises:
            EngineProcessError: it does not come up.
        """
        self._receive()
        self._serves = True

    def run(self, job: Job) -> JobResult:
        """Does a job and waits for its end.

        Raises:
            EngineProcessError: the engine failed or is gone.
        """
        result: JobResult = self._ask(job)
        return result

    def read(self, job: ReadJob) -> States:
        """Hidden states of prompts, one row each; the engine needs `hidden_states.ENGINE_ARGUMENTS`.

        Raises:
            EngineProcessError: the engine failed or is gone.
        """
        states: States = self._ask(job)
        return states

    def _ask(self, job: Job | ReadJob) -> Any:
        with contextlib.suppress(BrokenPipeError):  # `_receive` says why
            self._pipe.send(job)
        return self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            answer = "it ended"
        if isinstance(answer, str):
            tail = self._log.read_text(errors="replace")[-_LOG_TAIL:]
            raise EngineProcessError(f"the benchmark's engine failed: {answer}\n{tail}")
        return answer

    def close(self) -> None:
        """Takes the engine down, gently if it serves, and everything that it started with it."""
        family = self._family()
        self._pipe.close()
        try:
            self._process.join(CLOSE_LIMIT_S if self._serves else 0)
        finally:  # also when a second Ctrl-C cuts the waiting short
            for process in {*family, *self._family()}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.join(CLOSE_LIMIT_S)
            self._log.unlink(missing_ok=True)

    def _family(self) -> list[psutil.Process]:
        try:
            child = psutil.Process(self._process.pid)
            return [child, *child.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _child(pipe: Connection, config: dict[str, Any], log: str) -> None:
    os.setsid()
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # One compute thread: a second one would wait for whoever else has that core, and measure them.
    os.environ["OMP_NUM_THREADS"] = "1"
    asyncio.run(_serve(pipe, AppConfig.model_validate(config)))


async def _serve(pipe: Connection, config: AppConfig) -> None:
    from serving.sglang_engine import start_engine

    stock = config.cache.backend == "sglang"
    channel = "" if stock else new_address()
    directory = RunDirectory.create()
    engine = reading = None
    try:
        if channel:
            reading = asyncio.create_task(_drain(EventReceiver(channel)))
        engine = start_engine(config, "benchmark", channel, "" if stock else new_address(), directory)
        pipe.send(None)
        while True:
            job = await asyncio.to_thread(pipe.recv)
            if isinstance(job, ReadJob):
                pipe.send(await read_states(engine, job))
            else:
                pipe.send(await _run(engine, job, identified=not stock))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed its end
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            pipe.send(f"{type(error).__name__}: {error}")
    finally:
        if reading is not None:
            reading.cancel()
        if engine is not None:
            end_processes()
            engine.shutdown()
        directory.remove()
        os._exit(0)  # SGLang's tasks in this loop outlive their engine, and their cancellation


async def _drain(events: EventReceiver) -> None:
    async for _ in events.messages():
        pass


async def _run(engine: Any, job: Job, identified: bool) -> JobResult:
    rng = random.Random(job.seed)
    prompts = [rng.choices(_TOKEN_IDS, k=job.prompt_tokens) for _ in range(job.calls)]
    waiting = iter(enumerate(prompts))
    ttfts: list[float] = []
    hits: list[int] = []

    async def lane() -> None:
        for number, prompt in waiting:
            ttft, hit = await _call(engine, prompt, job.max_tokens, _hints(job, number) if identified else None)
            ttfts.append(ttft)
            hits.append(hit)

    async with asyncio.timeout(FLUSH_LIMIT_S):
        while not (await engine.tokenizer_manager.flush_cache()).success:  # noqa: ASYNC110, SGLang sets no event
            await asyncio.sleep(0.05)
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    async with asyncio.TaskGroup() as lanes:
        for _ in range(job.at_once):
            lanes.create_task(lane())
    return JobResult(time.perf_counter() - start, _cpu_seconds() - cpu_start, sum(ttfts) / len(ttfts), sum(hits))


def _cpu_seconds() -> float:
    """CPU time of this process and its descendants so far."""
    this = psutil.Process()
    times = [process.cpu_times() for process in [this, *this.children(recursive=True)]]
    return float(sum(one.user + one.system for one in times))


async def _call(engine: Any, prompt: list[int], max_tokens: int, hints: dict[str, Any] | None) -> tuple[float, int]:
    """Makes a call; its time to the first token, in seconds, and its prompt tokens that came from storage."""
    sampling = {"max_new_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    start = time.perf_counter()
    parts = await engine.async_generate(input_ids=prompt, sampling_params=sampling, stream=True, kv_hints=hints)
    first, hit = 0.0, 0
    async for part in parts:
        first = first or time.perf_counter() - start
        hit = (part["meta_info"].get("cached_tokens_details") or {}).get("storage", 0)
    return first, hit


def _hints(job: Job, number: int) -> dict[str, Any]:
    """The identity of a call, as the engine's scheduler takes it."""
    workflow, turn = divmod(number, CALLS_PER_WORKFLOW)
    identity = RequestIdentity(f"{job.seed}-{workflow}", f"agent-{turn}", final=turn == CALLS_PER_WORKFLOW - 1)
    return kv_hints(identity, uuid.uuid4().hex)
