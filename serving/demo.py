"""`forecache demo`: workflows of four agents against a running endpoint, with the cache figures of each call.

A planner plans; then, round by round, a researcher and a writer work and a critic judges, until the critic
answers APPROVED or the rounds are used up. Every prompt is the agent's own system message (its anchor), the
task, and all that was written so far, so it grows and shares its prefix with the agent's next call.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import httpx
import typer
from rich.console import Console

from serving.client import agent, workflow
from serving.demo_view import CallResult, DemoResult, DemoView, WorkflowResult

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.completion_usage import CompletionUsage

APPROVED = "APPROVED"
SEED = 0
PROBE_TIMEOUT_S = 10.0
# A lane whose workflow failed waits before the next one: a soak run must not hammer a broken endpoint.
PAUSE_AFTER_ERROR_S = 1.0

EXIT_ERRORS = 1
EXIT_UNREACHABLE = 2
EXIT_INTERRUPTED = 130

_TEAM = (
    "You work in a team of four: a planner, a researcher, a writer and a critic. You see the task and, in "
    "the order it was written, what the team wrote so far, each part under its author's name in brackets. "
    "Answer with your own part alone, in plain text, briefly, and repeat nothing that is there already. "
)
ANCHORS = {
    "planner": _TEAM
    + "You are the planner. Split the task into at most four steps, one line each, saying for each step what "
    "must be found out or written and how one will know that it is good enough. Leave the work to them.",
    "researcher": _TEAM
    + "You are the researcher. For the plan's steps, and for what the critic misses, list the facts, figures "
    "and examples that the writer needs. Mark what you are not sure of. Write notes, not prose.",
    "writer": _TEAM
    + "You are the writer. Turn the plan and the notes into the text the task asks for, complete and ready "
    "to be read by somebody who saw nothing of the team's work. If the critic asked for changes, make these.",
    "critic": _TEAM
    + "You are the critic. Compare the writer's last text with the task and the plan. If it is good enough, "
    f"answer with the one word {APPROVED}. Else never use this word, and name the changes that are needed, "
    "the most important first, each in one sentence.",
}
TASKS = (
    "Plan a three-day trip to Kyoto for a family with two small children.",
    "Explain to a new colleague how a radix tree shares prefixes.",
    "Write a one-page guide to starting a vegetable garden on a balcony.",
    "Compare heat pumps and gas boilers for a house built in 1970.",
    "Draft an invitation to a town meeting about a new bicycle lane.",
    "Describe how vaccines train the immune system, for a school paper.",
    "Outline a beginner's running plan of eight weeks that ends with 5 km.",
    "Summarise the causes of the fall of the Western Roman Empire.",
    "Write release notes for a program that now saves its work by itself.",
    "Advise a small bakery on how to waste less bread.",
    "Explain what a black hole is without using any mathematics.",
    "Prepare ten questions for the interview of a junior data engineer.",
)


class DemoError(Exception):
    """The demo cannot run at all; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run: `workflows` lanes at once, each one workflow or, with `duration_s`, one after another."""

    base_url: str = "http://127.0.0.1:8000/v1"
    api_key: str = "none"
    model: str | None = None
    workflows: int = 1
    rounds: int = 2
    max_tokens: int = 64
    duration_s: float | None = None
    task: str | None = None


async def run_demo(
    options: DemoOptions,
    *,
    result: DemoResult | None = None,
    on_call: Callable[[CallResult], object] = lambda call: None,
) -> DemoResult:
    """Runs the workflows of `options` and tells `on_call` of each call when it finishes.

    `result` is filled as the run goes: who passes it and cancels still has what was finished. A failed call
    ends its workflow and is part of the result. Raises DemoError if the endpoint cannot be used, or if the
    package openai is missing.
    """
    result = DemoResult() if result is None else result
    started = time.monotonic()
    numbers = itertools.count()
    run_id = secrets.token_hex(3)

    def finished(call: CallResult) -> None:
        result.totals.add(call)
        on_call(call)

    async def lane() -> None:
        while True:
            number = next(numbers)
            current = WorkflowResult(f"demo-{run_id}-{number}", _task(options.task, number))
            result.workflows.append(current)
            await _run_workflow(client, model, options, current, finished)
            if options.duration_s is None or time.monotonic() - started >= options.duration_s:
                return
            await asyncio.sleep(PAUSE_AFTER_ERROR_S if current.ended == "error" else 0)

    try:
        async with _client(options) as client:
            model = await _model(client, options)
            async with asyncio.TaskGroup() as lanes:
                for _ in range(options.workflows):
                    lanes.create_task(lane())
    finally:
        result.duration_s = time.monotonic() - started
    return result


def _task(own: str | None, number: int) -> str:
    """The tasks in turn; from the second turn on with its number, so that no two workflows are the same."""
    tasks = TASKS if own is None else (own,)
    turn, index = divmod(number, len(tasks))
    return tasks[index] if turn == 0 else f"{tasks[index]} (Variant {turn + 1}.)"


def _client(options: DemoOptions) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise DemoError("the demo needs the package openai: pip install 'forecache[bench]'") from error
    try:
        return AsyncOpenAI(base_url=options.base_url, api_key=options.api_key)
    except httpx.InvalidURL as error:
        raise DemoError(f"{options.base_url!r} is not a URL ({error}): pass --base-url http://host:port/v1") from error


async def _model(client: AsyncOpenAI, options: DemoOptions) -> str:
    """The model to ask for; finds out, before anything is started, whether the endpoint is there."""
    import openai

    try:
        models = await client.with_options(max_retries=0, timeout=PROBE_TIMEOUT_S).models.list()
    except openai.APIConnectionError as error:
        raise DemoError(
            f"no endpoint at {options.base_url} ({str(error.__cause__ or '') or error}): start one with "
            "`serve run configs/laptop.yaml`, or pass --base-url"
        ) from error
    except openai.APIStatusError as error:
        if options.model is not None and error.status_code == httpx.codes.NOT_FOUND:
            return options.model
        raise DemoError(
            f"{options.base_url}/models answered {error.status_code} ({error.message}): is it an "
            "OpenAI-compatible endpoint, and --api-key right?"
        ) from error
    if options.model is not None:
        return options.model
    if not models.data:
        raise DemoError(f"{options.base_url} serves no model yet: wait until it is up, or pass --model")
    return models.data[0].id


def _turns(rounds: int) -> Iterator[tuple[int, str]]:
    yield 0, "planner"
    for number in range(1, rounds + 1):
        for name in ("researcher", "writer", "critic"):
            yield number, name


async def _run_workflow(
    client: AsyncOpenAI,
    model: str,
    options: DemoOptions,
    current: WorkflowResult,
    finished: Callable[[CallResult], None],
) -> None:
    written = f"Task: {current.task}"
    async with workflow(current.id):
        for number, name in _turns(options.rounds):
            call = CallResult(current.id, name, number)
            async with agent(name):
                text = await _call(client, model, options, call, written)
            current.calls.append(call)
            finished(call)
            if call.error is not None:
                current.ended = "error"
                return
            written += f"\n\n[{name}]\n{text}"
            if name == "writer":
                current.answer = text
            if name == "critic" and APPROVED in text:
                current.ended = "critic"
                return
    current.ended = "limit"


async def _call(client: AsyncOpenAI, model: str, options: DemoOptions, call: CallResult, written: str) -> str:
    """Makes the call, fills `call`, and returns the text."""
    texts: list[str] = []
    finish: str | None = None
    started = time.monotonic()
    try:
        raw = await client.chat.completions.with_raw_response.create(
            model=model,
            messages=[
                {"role": "system", "content": ANCHORS[call.agent]},
                {"role": "user", "content": written},
            ],
            max_tokens=options.max_tokens,
            temperature=0,
            seed=SEED,
            stream=True,
            stream_options={"include_usage": True},
        )
        call.engine = raw.headers.get("x-engine-id")
        async with raw.parse() as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    finish = choice.finish_reason or finish
                    if choice.delta.content:
                        texts.append(choice.delta.content)
                        call.ttft_s = call.ttft_s or time.monotonic() - started
                if chunk.usage is not None:
                    _take_usage(call, chunk.usage)
        if finish is None:
            call.error = "the stream broke off before its end"
    # Of what class a broken stream's error is depends on the HTTP library below openai.
    except Exception as error:
        call.error = f"{type(error).__name__}: {error}"
    call.total_s = time.monotonic() - started
    return "".join(texts).strip()


def _take_usage(call: CallResult, usage: CompletionUsage) -> None:
    call.prompt_tokens = usage.prompt_tokens
    call.output_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    if details is not None:
        call.cached_tokens = details.cached_tokens
        call.cached_device = getattr(details, "device", None)
        call.cached_host = getattr(details, "host", None)


_DEFAULTS = DemoOptions()


def demo(
    base_url: Annotated[str, typer.Option(help="The OpenAI-compatible endpoint, with its /v1.")] = _DEFAULTS.base_url,
    api_key: Annotated[
        str, typer.Option(envvar="OPENAI_API_KEY", show_envvar=True, help="The key the endpoint asks for.")
    ] = _DEFAULTS.api_key,
    model: Annotated[str | None, typer.Option(help="The model to ask.", show_default="the first of /v1/models")] = None,
    workflows: Annotated[
        int, typer.Option(min=1, help="How many workflows run at once, each with another task.")
    ] = _DEFAULTS.workflows,
    rounds: Annotated[
        int,
        typer.Option(min=1, help="Rounds of researcher, writer and critic, if no critic approves earlier."),
    ] = _DEFAULTS.rounds,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer of a call, in tokens.")] = _DEFAULTS.max_tokens,
    duration: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Start a new workflow whenever one ends, until this time is over."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Your own task, instead of the built-in ones.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but one JSON object, at the end.")] = False,
) -> None:
    """Run workflows of four agents against a running endpoint and show what its cache saved.

    A planner plans, then a researcher, a writer and a critic take turns until the critic approves or the
    rounds are used up. The agents share a growing context, so most of each prompt can come from the cache.

    Exit code: 0 all calls succeeded, 1 some failed, 2 the endpoint cannot be used, 130 interrupted by Ctrl-C.
    """
    options = DemoOptions(
        base_url=base_url,
        api_key=api_key,
        model=model,
        workflows=workflows,
        rounds=rounds,
        max_tokens=max_tokens,
        duration_s=duration,
        task=task,
    )
    result = DemoResult()
    view = DemoView(Console(quiet=as_json), result.totals)
    interrupted = False
    try:
        with view:
            asyncio.run(run_demo(options, result=result, on_call=view.on_call))
    except DemoError as error:
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from error
    except KeyboardInterrupt:
        interrupted = True
    view.print_summary(result)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if result.totals.errors:
        raise typer.Exit(EXIT_ERRORS)
