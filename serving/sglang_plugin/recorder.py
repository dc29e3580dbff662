"""What the scheduler says of itself: that it lives, how far it is, and which calls reached it.

Installed only in processes that `FORECACHE_CHANNEL` names a socket for and that run SGLang's scheduler. Cost per
scheduler step: three clock reads and a few additions. A message is sent four times a second, before a long forward, and
for all calls that started within `CALLS_PERIOD_S`: the replica that reads them has the engine's tokenizer in its
process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any

from cache_actor.codec import MessageError
from cache_actor.messages import (
    Beat,
    CallsStarted,
    CallStarted,
    Message,
    RequestIdentity,
    Work,
    identity_fields,
    identity_from_fields,
)
from serving.sglang_plugin.channel import ADDRESS_VARIABLE, EventSender
from serving.sglang_plugin.guard import guarded
from serving.sglang_plugin.meter import Meter

logger = logging.getLogger("forecache")

IDENTITY_ACTION = "forecache.identity"
IDENTITY_VERSION = "1"
WARM_UP_ACTION = "forecache.warm_up"
BEAT_PERIOD_S = 0.25
CALLS_PERIOD_S = 0.05
# A forward of fewer tokens is over before anybody could get impatient.
LONG_FORWARD_TOKENS = 256

_SCHEDULER_MODULE = "sglang.srt.managers.scheduler"


def runs_a_scheduler() -> bool:
    """Whether this process may run SGLang's scheduler: it has imported it. (The detokenizer has not.)"""
    return _SCHEDULER_MODULE in sys.modules


def install() -> None:
    """Hooks the recorder into the scheduler, if this process has a channel and may run one."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address or not runs_a_scheduler():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from tqdm import tqdm  # type: ignore[import-untyped]

    from serving.sglang_plugin import plans

    # By default a progress bar, such as that of loading weights, makes a named semaphore, for processes that share a
    # terminal. When engine and resource tracker are killed at once it stays in /dev/shm.
    tqdm.set_lock(threading.RLock())
    recorder = Recorder(address)
    plans.install(recorder.send)
    scheduler = f"{_SCHEDULER_MODULE}.Scheduler"
    HookRegistry.register(f"{scheduler}.ingest_requests", recorder.after_ingest, HookType.AFTER)
    HookRegistry.register(f"{scheduler}.run_batch", recorder.before_forward, HookType.BEFORE)
    HookRegistry.register(f"{scheduler}.process_batch_result", recorder.after_result, HookType.AFTER)
    HookRegistry.register(f"{scheduler}.on_idle", recorder.before_idle, HookType.BEFORE)
    HookRegistry.register(f"{scheduler}.handle_generate_request", recorder.before_call, HookType.BEFORE)


class Recorder:
    """Turns scheduler hooks into messages. The socket opens at the first one, in the process that sends."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sender: EventSender | None = None
        self._next_beat = 0.0
        self._next_calls = 0.0
        self._calls: list[CallStarted] = []
        self._meter = Meter()

    @guarded
    def after_ingest(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._beat(scheduler, forward_tokens=0)
        if self._calls and now >= self._next_calls:
            self._next_calls = now + CALLS_PERIOD_S
            calls, self._calls = self._calls, []
            self.send(CallsStarted(calls))

    @guarded
    def before_forward(self, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        self._meter.begins(time.monotonic())
        tokens = batch.extend_num_tokens or 0
        if tokens >= LONG_FORWARD_TOKENS:
            self._beat(scheduler, forward_tokens=tokens)

    @guarded
    def after_result(self, _: Any, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        mode, calls, prompt = batch.forward_mode, len(batch.reqs), 0
        prefill = mode.is_extend()
        if prefill:
            decoding = len(batch.decoding_reqs or ())  # calls that decode in the same batch, a token each
            prompt = (batch.extend_num_tokens or 0) - decoding
            output = decoding + sum(1 for req in batch.reqs[: calls - decoding] if req.output_ids)
        else:
            output = result.get_num_generated_tokens(calls) if mode.is_decode() else 0
        self._meter.ends(time.monotonic(), prefill, prompt, output)

    @guarded
    def before_idle(self, *args: Any, **kwargs: Any) -> None:
        self._meter.idles()

    @guarded
    def before_call(self, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        if _tp_rank() == 0 and not is_warm_up(request.kv_hints):
            identity = identity_of(request.kv_hints)
            self._calls.append(CallStarted(request.rid, len(request.input_ids or ()), identity))

    def _beat(self, scheduler: Any, forward_tokens: int) -> None:
        now = time.monotonic()
        self._next_beat = now + BEAT_PERIOD_S
        self.send(
            Beat(
                rank=_tp_rank(),
                pid=os.getpid(),
                forwards=scheduler.forward_ct,
                forward_tokens=forward_tokens,
                running=len(scheduler.running_batch.reqs),
                waiting=len(scheduler.waiting_queue),
                at=now,
                pressure=getattr(getattr(scheduler, "tree_cache", None), "pressure", 0),
                work=self._work(scheduler, now),
            )
        )

    def _work(self, scheduler: Any, now: float) -> Work:
        """SGLang's own cache does not say what of it was computed before."""
        meter, cache = self._meter, scheduler.tree_cache
        regret: int | None = getattr(cache, "regret", None)
        reused: int = getattr(cache, "reused", 0)
        tiers: tuple[int, int] = getattr(cache, "tier_tokens", (0, 0))
        return Work(now, meter.prefill_s, meter.busy_s, meter.computed, meter.output, regret, reused, *tiers)

    def send(self, message: Message) -> None:
        if self._sender is None:
            self._sender = EventSender(self._address)
        self._sender.send(message)


def _tp_rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    rank: int = get_parallel().tp_rank
    return rank


def kv_hints(identity: RequestIdentity, call: str) -> dict[str, Any]:
    """A KV-hint envelope that carries an identity: what `identity_of` reads in the scheduler."""
    action = {
        "action_id": f"{call}-identity",
        "action_type": IDENTITY_ACTION,
        "action_version": IDENTITY_VERSION,
        "payload": {"fields": identity_fields(identity)},
    }
    return {"protocol_version": "1", "message_id": call, "actions": [action]}


def warm_up_hints(call: str) -> dict[str, Any]:
    """A KV-hint envelope of a request that nobody makes: what `is_warm_up` looks for in the scheduler."""
    action = {"action_id": call, "action_type": WARM_UP_ACTION, "action_version": IDENTITY_VERSION, "payload": {}}
    return {"protocol_version": "1", "message_id": call, "actions": [action]}


def is_warm_up(kv_hints: Any) -> bool:
    """Whether a request only computes what others may ask for; it is not counted, and nothing is learned from it."""
    return kv_hints is not None and any(action.action_type == WARM_UP_ACTION for action in kv_hints.actions)


def identity_of(kv_hints: Any) -> RequestIdentity | None:
    """The identity in a request's KV-hint envelope; None when there is none or it is of another version."""
    for action in kv_hints.actions if kv_hints is not None else ():
        if action.action_type == IDENTITY_ACTION and action.action_version == IDENTITY_VERSION:
            try:
                return identity_from_fields(action.payload.get("fields"))
            except MessageError:
                return None
    return None
