"""One round's load: the workflows of a workload, each call after the one before, as the arrivals say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import httpx

from serving.benchmark.driver.call import Answer, body_of, make_call
from serving.benchmark.driver.planner import Planner
from serving.benchmark.workloads import Arrivals, Tokens, Workflow, Workload

# A lane whose workflow failed waits before its next one: a run must not hammer a broken endpoint.
PAUSE_AFTER_ERROR_S = 1.0
FAILURES_OF_SILENCE = 3
WATCH_PERIOD_S = 0.5


class EndpointSilentError(Exception):
    """Calls fail and nothing answers any more; the message has the last reason."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How calls are made.

    suffix: makes the workflows' ids those of one round, so that rounds share nothing by mistake.
    sessions: whether calls name a session, for SGLang's own session-aware cache.
    """

    model: str
    suffix: str
    sessions: bool
    call_timeout_s: float
    silence_s: float


class Load:
    """Plays a workload against an endpoint.

    Segments that are the output of an earlier call are the tokens that it really generated, if the endpoint returns
    them (Forecache does), else made-up ids of the same length.

    Args:
        http: with the base URL of the endpoint, `/v1/` included.
        on_call: told of each call that is over: workflow, index, answer.
        on_over: awaited when a workflow is over, with its name as the engines know it, and whether it succeeded.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        tokens: Tokens,
        planner: Planner,
        options: LoadOptions,
        on_call: Callable[[Workflow, int, Answer], object],
        on_over: Callable[[str, bool], Awaitable[None]] | None = None,
    ) -> None:
        self._http = http
        self._tokens = tokens
        self._planner = planner
        self._options = options
        self._on_call = on_call
        self._on_over = on_over
        self._last_success = time.monotonic()
        self._failures = 0
        self._reason = ""

    async def play(self, workload: Workload, arrivals: Arrivals, time_scale: float = 1.0) -> None:
        """All workflows, to their ends. A failed call ends its workflow.

        Raises:
            EndpointSilentError: calls have failed for `silence_s`, and none has succeeded.
        """
        self._last_success = time.monotonic()
        starts = arrivals.start_times(workload)
        watch = asyncio.create_task(self._watch())
        if starts is None:
            waiting = iter(workload.workflows)
            lanes = min(getattr(arrivals, "lanes", 1), len(workload.workflows))
            work = [asyncio.create_task(self._lane(waiting)) for _ in range(lanes)]
        else:
            work = [
                asyncio.create_task(self._later(workflow, at * time_scale))
                for workflow, at in zip(workload.workflows, starts, strict=True)
            ]
        try:
            waited_for = {watch, *work}
            while not all(task.done() for task in work):
                done, waited_for = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in [watch, *work]:
                task.cancel()
            await asyncio.gather(watch, *work, return_exceptions=True)

    async def _lane(self, waiting: Iterator[Workflow]) -> None:
        for workflow in waiting:
            if not await self._workflow(workflow):
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)

    async def _later(self, workflow: Workflow, at_s: float) -> None:
        await asyncio.sleep(at_s)
        await self._workflow(workflow)

    async def _workflow(self, workflow: Workflow) -> bool:
        """Whether all of its calls succeeded."""
        options, planner = self._options, self._planner
        name = f"{workflow.id}.{options.suffix}"
        outputs: dict[int, list[int]] = {}
        whole = True
        for index, call in enumerate(workflow.calls):
            headers = {"x-workflow-id": name, "x-agent-name": call.agent}
            last = index + 1 == len(workflow.calls)
            if last:
                headers["x-workflow-final"] = "true"
            prompt = self._tokens.prompt_ids(call, outputs).tolist()
            body = body_of(options.model, prompt, call.output_tokens, name if options.sessions else None)
            planner.started(name, workflow, index)
            answer = await make_call(
                self._http, body, headers, lambda engine: planner.on_engine(name, engine), options.call_timeout_s
            )
            planner.ended(name, workflow, index)
            self._on_call(workflow, index, answer)
            self._note(answer)
            if answer.error is not None:
                whole = False
                break
            if answer.output:
                outputs[index] = answer.output
            if not last:
                await asyncio.sleep(call.pause_s)
        planner.over(name, workflow)
        if self._on_over is not None:
            await self._on_over(name, whole)
        return whole

    def _note(self, answer: Answer) -> None:
        if answer.error is None:
            self._last_success, self._failures = time.monotonic(), 0
        else:
            self._failures += 1
            self._reason = answer.error

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            silent = time.monotonic() - self._last_success
            if self._failures >= FAILURES_OF_SILENCE and silent > self._options.silence_s:
                raise EndpointSilentError(
                    f"the last {self._failures} calls failed and none has succeeded for {silent:.0f} s; "
                    f"the last reason: {self._reason}"
                )
