"""One engine in virtual time: SGLang's real cache and pools, with batching, chunked prefill and a host link modelled.

It follows SGLang's scheduler where that matters to a cache: prefill goes before decode, calls are admitted first come
first served as far as the pool allows, the prompt enters the tree chunk by chunk and the output when the call is over,
and a decode without room sends the newest call back to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey

from cache_actor.messages import EnginePlan
from serving.benchmark.bare_cache import make_cache
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.request import Request
from serving.sglang_plugin.cache import ForecacheCache
from serving.sglang_plugin.plans import CLOCK_PERIOD_S, MAX_BURST_S
from serving.sglang_plugin.settings import CacheSettings

# SGLang expects of what running calls may still generate this share, once it has settled.
NEW_TOKEN_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes, in tokens and calls."""

    device_tokens: int
    host_tokens: int
    chunk_tokens: int = 8192
    max_running: int = 64
    longest_call: int = 32768


class TooLong(ValueError):
    """A call can never run on this engine."""


class _Arrival:
    """The end of a load, where SGLang expects a device event."""

    def __init__(self, engine: ModelEngine, done_s: float) -> None:
        self._engine = engine
        self.done_s = done_s

    def query(self) -> bool:
        return self._engine.now >= self.done_s

    def synchronize(self) -> None:
        self._engine.now = max(self._engine.now, self.done_s)


class ModelEngine:
    """Calls come in by `submit`; each `step` does one thing and says when it is over.

    Args:
        finished: told of each call that is over; its times are in it.
        cache_class: whose cache it is.

    Attributes:
        prefill_s, busy_s: seconds spent on prefill, and on anything.
        computed, generated: prompt tokens computed, those of calls that are not over included, and output tokens.
    """

    def __init__(
        self,
        shape: EngineShape,
        costs: Costs,
        settings: CacheSettings,
        finished: Callable[[Request], None],
        cache_class: type[ForecacheCache] = ForecacheCache,
    ) -> None:
        self.now = 0.0
        self.shape = shape
        self.retractions = 0
        self.prefill_s = self.busy_s = 0.0
        self.computed = self.generated = 0
        self._costs = costs
        self._finished = finished
        self.cache = make_cache(
            shape.device_tokens, shape.host_tokens, settings, lambda: self.now, cache_class=cache_class
        )
        self.cache.prefetcher.timer = lambda: self.now
        self._allocator = self.cache.token_to_kv_pool_allocator
        self._rows = ReqToTokenPool(shape.max_running, shape.longest_call + 1, "cpu", enable_memory_saver=False)
        self.cache.req_to_token_pool = self._rows
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._chunked: Request | None = None
        self._link_free_s = 0.0
        self._next_clock = 0.0
        self._last_prefetch = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running or self._chunked)

    @property
    def running_calls(self) -> int:
        return len(self._running) + (self._chunked is not None)

    @property
    def waiting_calls(self) -> int:
        return len(self._waiting)

    @property
    def pending(self) -> list[tuple[str, int]]:
        """Of calls that have not been computed to their first token: the workflow, and the prompt tokens to go."""
        before = [(one.workflow.id, one.to_compute) for one in self._waiting]
        if self._chunked is not None:
            before.append((self._chunked.workflow.id, self._chunked.to_compute - self._chunked.computed))
        return before

    def abandon(self) -> list[Request]:
        """The calls that are lost with the engine, which is not to be used again."""
        lost = [*self._waiting, *self._running, *([self._chunked] if self._chunked is not None else [])]
        self._waiting.clear()
        self._running.clear()
        self._chunked = None
        return lost

    def submit(self, request: Request) -> None:
        """Takes a call.

        Raises:
            TooLong: its prompt and output are more than the pool, or than a row, holds.
        """
        most = min(self.shape.device_tokens, self.shape.longest_call)
        if len(request.ids) > most:
            raise TooLong(
                f"call {request.index} of workflow {request.workflow.id} needs {len(request.ids)} tokens, the engine "
                f"takes {most}; give more device tokens or a smaller scale"
            )
        self._waiting.append(request)

    def tell(self, plan: EnginePlan, now: float) -> None:
        """A plan arrives; its way has taken the engine's time. What an idle engine loses so, nobody waits for."""
        self.now = max(self.now, now) + self._costs.plan_s
        self.cache.apply(plan)

    def step(self, until: float) -> bool:
        """Does the next step from `now` on, and moves `now` to its end. False: there is nothing to do.

        Args:
            until: when something may come from outside; decode steps that end before it are done in one go.
        """
        if self.now >= self._next_clock:
            self._next_clock = self.now + CLOCK_PERIOD_S
            self.cache.tick(self.now)
        if self.cache.tiered:
            self.cache.check_hicache_events()
        self._prefetch()
        return self._prefill() or self._decode(until)

    def _prefetch(self) -> None:
        prefetcher = self.cache.prefetcher
        if self._waiting or self._chunked or not prefetcher.has_work:
            return
        seconds = min(self.now - self._last_prefetch, MAX_BURST_S)
        self._last_prefetch = self.now
        prefetcher.step(int(seconds * prefetcher.tokens_per_s))
        self._time_loads()

    def _time_loads(self) -> float:
        """Gives each load that has just begun its end on the link; the end of the last."""
        if not self.cache.tiered:
            return self.now
        queue = self.cache.cache_controller.ack_load_queue
        for place, ack in enumerate(queue):
            if not isinstance(ack.finish_event, _Arrival):
                begin = max(self.now, self._link_free_s)
                self._link_free_s = begin + ack.num_tokens / self._costs.link_tokens_per_s
                queue[place] = ack._replace(finish_event=_Arrival(self, self._link_free_s))
        return self._link_free_s

    def _prefill(self) -> bool:
        room = self.shape.chunk_tokens
        batch: list[tuple[Request, int]] = []
        if self._chunked is not None:
            piece = min(room, self._chunked.to_compute - self._chunked.computed)
            if not self._make_room(piece):
                return False
            batch.append((self._chunked, piece))
            room -= piece
        while self._waiting and room > 0 and self._chunked is None:
            if len(self._running) + len(batch) >= self.shape.max_running:
                break
            request = self._waiting[0]
            if not self._admit(request, sum(one.ahead for one, _ in batch)):
                break
            self._waiting.popleft()
            piece = min(room, request.to_compute - request.computed)
            batch.append((request, piece))
            room -= piece
            if request.computed + piece < request.to_compute:
                self._chunked = request
        if not batch:
            return False
        self._compute(batch)
        return True

    def _compute(self, batch: list[tuple[Request, int]]) -> None:
        for request, piece in batch:
            self._allocate(request, piece)
        compute = self._costs.prefill([(piece, request.computed) for request, piece in batch])
        # Layers of a load and of the prefill overlap: the longer of the two counts.
        end = max(self.now + compute, *(request.load_done_s for request, _ in batch))
        self.prefill_s += end - self.now
        self.busy_s += end - self.now
        self.computed += sum(piece for _, piece in batch)
        self.now = end
        for request, piece in batch:
            request.computed += piece
            if request.computed < request.to_compute:
                self.cache.checkpoint(request, up_to=request.computed)
                continue
            if request is self._chunked:
                self._chunked = None
            if request.first_token_s is None:
                request.first_token_s = self.now
            request.generated += 1
            self.generated += 1
            if request.finished():
                self._finish(request)
            else:
                self.cache.checkpoint(request, up_to=request.computed)
                self._running.append(request)

    def _admit(self, request: Request, promised: int) -> bool:
        """Matches and locks its prefix and begins its load, if the pool has room for what it may come to need.

        Args:
            promised: tokens that the calls admitted before it in this step may come to need.
        """
        key = RadixKey(request.ids[: request.to_compute - 1], None)
        match = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        device, host = int(match.device_prefix_len), int(match.host_hit_length)
        lock = self.cache.lock(match.last_device_node)
        needed = len(request.ids) - device
        growing = sum(one.output_tokens - one.generated for one in self._running) * NEW_TOKEN_RATIO
        free = self._allocator.available_size() + self.cache.full_evictable_size()
        if needed + growing + promised > free:
            self.cache.unlock(lock)
            return False
        request.last_node = match.last_device_node
        loaded = 0
        if host:
            loaded, request.last_node = self.cache.init_load_back(
                InitLoadBackParams(best_match_node=match.best_match_node, host_hit_length=host, req=request)
            )
            if loaded:
                self.cache.ready_to_load_host_cache()
                request.load_done_s = self._time_loads()
        request.lock = self.cache.lock(request.last_node)
        self.cache.unlock(lock)
        self._rows.alloc([request])
        request.computed = request.kv.cache_protected_len = device + loaded
        request.kv.kv_allocated_len = request.computed
        if request.computed:
            indices = self.cache.path_device_indices(request.last_node)
            self._rows.write((request.kv.req_pool_idx, slice(0, request.computed)), indices.to(torch.int32))
        if not request.admitted:
            request.admitted = True
            request.cached_tokens_device, request.cached_tokens_host = device, loaded
        return True

    def _make_room(self, tokens: int) -> bool:
        short = tokens - self._allocator.available_size()
        if short > 0:
            self.cache.evict(EvictParams(num_tokens=short))
        return bool(self._allocator.available_size() >= tokens)

    def _allocate(self, request: Request, tokens: int) -> None:
        assert self._make_room(tokens), f"{tokens} tokens were promised to {request.rid}"
        fresh = self._allocator.alloc(tokens)
        begin = request.kv.kv_allocated_len
        self._rows.write((request.kv.req_pool_idx, slice(begin, begin + tokens)), fresh.to(torch.int32))
        request.kv.kv_allocated_len += tokens

    def _decode(self, until: float) -> bool:
        while self._running and not self._make_room(len(self._running)):
            self._retract(self._running.pop())
        if not self._running:
            return False
        calls = len(self._running)
        seconds = self._costs.decode(calls, sum(one.computed for one in self._running))
        most = min(one.output_tokens - one.generated for one in self._running)
        steps = max(1, min(most, int((until - self.now) / seconds) if until < 1e300 else most))
        steps = min(steps, max(1, self._allocator.available_size() // calls))
        for request in self._running:
            self._allocate(request, steps)
            request.computed += steps
            request.generated += steps
        self.now += seconds * steps
        self.busy_s += seconds * steps
        self.generated += steps * calls
        for request in [one for one in self._running if one.finished()]:
            self._running.remove(request)
            self._finish(request)
        return True

    def _finish(self, request: Request) -> None:
        self.cache.checkpoint(request, up_to=request.computed)
        self._release(request)
        request.done_s = self.now
        self._finished(request)

    def _retract(self, request: Request) -> None:
        """Its tokens beyond the tree are lost; it waits at the head of the queue with what it has generated."""
        self.retractions += 1
        self.cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, request.kv.kv_allocated_len)])
        self.cache.unlock(request.lock)
        self._rows.free(request)
        request.kv = type(request.kv)()
        request.lock = None
        request.computed = 0
        self._waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.cache.unlock(request.lock)
        request.lock = None
        self._rows.free(request)
