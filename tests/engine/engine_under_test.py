"""A real SGLang engine in a thread with an event loop of its own, as in a Serve replica; and jobs for one elsewhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import orjson

from cache_actor.messages import Beat, CallsStarted, CallStarted, EnginePlan, EngineReport, RequestIdentity, encode
from serving.calls import EngineCall, Kind, Reply
from serving.config import AppConfig, CacheConfig, HealthConfig, ModelConfig, RandomQwen3Config
from serving.health import EngineHealth
from serving.plan_sender import PlanSender
from serving.processes import end_processes
from serving.run_directory import RunDirectory
from serving.sglang_plugin.channel import EventReceiver, new_address

DEVICE_TOKENS = 2048

CONFIG = AppConfig(
    model=ModelConfig(
        source="random-qwen3",
        name="random",
        random=RandomQwen3Config(hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32),
    ),
    cache=CacheConfig(policy="lifecycle", prefetch_reserve_tokens=64, learned_dir=""),
    engine={
        "max_total_tokens": DEVICE_TOKENS,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 4.0,
        "chunked_prefill_size": 512,
        "max_running_requests": 8,
        "context_length": 1500,
        "dtype": "float32",
    },
)


class EngineUnderTest:
    """The engine as `EngineReplica` runs it, without Ray."""

    def __init__(self, config: AppConfig) -> None:
        self.config = config
        self.started_calls: dict[str, CallStarted] = {}
        self.announced: list[int] = []
        self.last_beat = 0.0
        self.plan = 0
        self.health = EngineHealth(HealthConfig(), time.monotonic())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._directory = RunDirectory.create()
        self.run(self._start())

    async def _start(self) -> None:
        from serving.sglang_engine import openai_api, start_engine

        channel = new_address()
        self._events = EventReceiver(channel)
        self.plans = PlanSender(new_address())
        self.engine = start_engine(self.config, "test", channel, self.plans.address, self._directory)
        self.api = openai_api(self.engine, self.config, "test")
        self._reading = self._loop.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._events.messages():
            if isinstance(message, Beat):
                self.health.on_beat(message, message.at)
                self.last_beat = message.at
                self.announced += [message.forward_tokens] if message.forward_tokens else []
            elif isinstance(message, CallsStarted):
                self.started_calls |= {call.rid: call for call in message.calls}
            else:
                self.plans.on_answer(message)

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float = 120) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def parts(self, body: dict[str, Any], kind: Kind = "chat", **identity: Any) -> AsyncIterator[Reply | bytes]:
        return self.api.answer(new_call(body, kind, **identity))

    def answer(self, body: dict[str, Any], kind: Kind = "chat", **identity: Any) -> tuple[int, Any]:
        """Status and body: parsed JSON, or the text of a stream."""

        async def collect() -> tuple[Reply, bytes]:
            parts = [part async for part in self.parts(body, kind, **identity)]
            assert isinstance(parts[0], Reply)
            return parts[0], b"".join(part for part in parts[1:] if isinstance(part, bytes))

        reply, rest = self.run(collect())
        data = reply.body + rest
        return reply.status, data.decode() if reply.media_type == "text/event-stream" else orjson.loads(data)

    def apply(self, **fields: Any) -> EngineReport:
        """Applies a plan of these fields; what the engine reports."""
        self.plan += 1
        plan = EnginePlan(
            **({"time_to_live_s": 60.0, "ends": [], "tables": {}, "prefetches": []} | fields), plan=self.plan
        )
        return self.run(self.plans.apply(encode(plan)))  # type: ignore[no-any-return]

    def ask(self, what: str) -> dict[str, Any]:
        return self.run(self.plans.ask(what))  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Empties both tiers, as soon as the engine is idle."""

        async def flushed() -> None:
            async with asyncio.timeout(20):
                while not (await self.engine.tokenizer_manager.flush_cache()).success:
                    await asyncio.sleep(0.05)

        self.run(flushed())

    def close(self) -> None:
        end_processes()
        self.engine.shutdown()
        self.plans.close()
        self._directory.remove()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def new_call(body: dict[str, Any], kind: Kind = "chat", **identity: Any) -> EngineCall:
    who = RequestIdentity(**({"workflow": "w", "agent": "a"} | identity))
    return EngineCall(kind, {"model": "random", **body}, who, rid=f"test-{uuid.uuid4().hex}")


def run_engine(config: AppConfig, job: str) -> dict[str, Any]:
    """Does a job with an engine in a process of its own (a machine's CPU platform is chosen once a process)."""
    script = Path(__file__).with_name("engine_job.py")
    said = json.dumps({"config": config.model_dump(mode="json"), "job": job})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], input=said, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
