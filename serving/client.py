"""Names the workflow and the agent of every call that the `openai` package makes inside a block.

    with workflow("trip-42"), agent("planner"):
        client.chat.completions.create(...)

The call carries the headers `x-workflow-id`, `x-agent-name` and, for a workflow inside a workflow,
`x-parent-workflow-id`; on leaving the block the workflow is ended at every endpoint that was called in it.
This works for any client built on httpx (or httpx2, from openai 3 on), sync and async, streaming, retried,
and in the tasks, threads and thread pool jobs that are started inside the block. In async code write
`async with`: a plain `with` blocks the event loop while it ends the workflow.

The first block wraps, for the whole process, `send` of the HTTP clients, `Thread.start` and
`ThreadPoolExecutor.submit`; with no block open they only look up one context variable. `uninstall` takes them
away. This module stands alone: it needs httpx and nothing else of Forecache.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import secrets
import threading
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import quote

import httpx

__all__ = ["Current", "agent", "current", "uninstall", "workflow"]

END_TIMEOUT_S = 5.0
MAX_NAME_CHARS = 128
# The longer first: each is the end of a path, and what stands before it is the endpoint.
LLM_PATHS = (b"/chat/completions", b"/completions")
# What a server that knows no workflows answers to `DELETE /v1/workflows/{id}`.
NOT_FORECACHE = frozenset({404, 405, 501})

_LOG = logging.getLogger("forecache.client")
_F = TypeVar("_F", bound=Callable[..., Any])


class Current(NamedTuple):
    """What a call made here and now would be tagged with."""

    workflow: str | None
    agent: str | None
    parent: str | None


@dataclass(frozen=True, slots=True)
class _Tag:
    """The state inside a block. `outer` is the state to return to when `block` is left."""

    block: _Block | None = None
    outer: _Tag | None = None
    workflow: str | None = None
    parent: str | None = None
    agent: str | None = None
    final: bool = False


@dataclass(slots=True)
class _OpenWorkflow:
    """A workflow with at least one open block in this process.

    `to_end` maps the URL to DELETE to the headers of the newest call there: the object itself, since httpx
    adds the authorization of a client's `auth=` to it while it sends.
    """

    blocks: int = 0
    to_end: dict[str, MutableMapping[str, str]] = field(default_factory=dict)


_TAG: ContextVar[_Tag | None] = ContextVar("forecache_tag", default=None)
_OPEN: dict[str, _OpenWorkflow] = {}
_LOCK = threading.Lock()


def current() -> Current:
    """The ids that are in force here; None where no block is open."""
    tag = _TAG.get() or _Tag()
    return Current(tag.workflow, tag.agent, tag.parent)


class _Block(ABC):
    """Changes the tag inside it: `with`, `async with`, or a decorator that enters anew for each call."""

    @abstractmethod
    def _inside(self, outer: _Tag) -> _Tag:
        """The tag that is in force inside this block, given the one outside it."""

    @abstractmethod
    def _anew(self) -> Self:
        """A block like this one that has not been entered."""

    def _enter(self) -> None:
        _install()
        outer = _TAG.get()
        _TAG.set(replace(self._inside(outer or _Tag()), block=self, outer=outer))

    def _leave(self) -> dict[str, dict[str, str]]:
        """Restores the outer tag. Returns the URLs to DELETE, each with the headers for it."""
        # Left in another context than it was entered in (an async fixture), a block has nothing to restore.
        tag = _TAG.get()
        if tag is not None and tag.block is self:
            _TAG.set(tag.outer)
        return {}

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, *error: object) -> None:
        for url, headers in self._leave().items():
            with _failure_warns(url), httpx.Client(**_client_options(url)) as client:
                _check(client.delete(url, headers=headers))

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        for url, headers in self._leave().items():
            with _failure_warns(url):
                async with httpx.AsyncClient(**_client_options(url)) as client:
                    _check(await client.delete(url, headers=headers))

    def __call__(self, function: _F) -> _F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{type(self).__name__} cannot decorate the generator {function.__qualname__!r}: "
                "open the block inside of it"
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._anew():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            async with self._anew():
                return await function(*args, **kwargs)

        return cast(_F, call_async if inspect.iscoroutinefunction(function) else call)


class agent(_Block):
    """Names the agent of the calls inside. With `final`, each of them ends its workflow when it finishes."""

    def __init__(self, name: str, *, final: bool = False) -> None:
        self.name = _checked("agent name", name)
        self.final = final

    def _inside(self, outer: _Tag) -> _Tag:
        return replace(outer, agent=self.name, final=self.final)

    def _anew(self) -> Self:
        return type(self)(self.name, final=self.final)


class workflow(_Block):
    """Makes the calls inside one workflow, and ends it when the process leaves the last block of this id.

    id: up to 128 characters, no control characters; by default a fresh `wf-<12 hex digits>`.
    parent: id of the workflow that started this one; by default the workflow whose block this one stands in.
    end: False leaves the workflow open at the endpoints, for another process to go on with.

    Ending is one DELETE to each endpoint that was called inside, with the authorization of the call. It is
    left out where the last call was final. If it fails, the logger `forecache.client` warns.
    """

    def __init__(self, id: str | None = None, *, parent: str | None = None, end: bool = True) -> None:
        self.id = f"wf-{secrets.token_hex(6)}" if id is None else _checked("workflow id", id)
        self.parent = None if parent is None else _checked("parent workflow id", parent)
        if self.parent == self.id:
            raise ValueError(f"workflow {self.id!r} cannot be its own parent: give the outer workflow's id")
        self._given = id
        self._end = end

    def _inside(self, outer: _Tag) -> _Tag:
        inherited = outer.parent if outer.workflow == self.id else outer.workflow
        return replace(outer, workflow=self.id, parent=self.parent or inherited)

    def _anew(self) -> Self:
        return type(self)(self._given, parent=self.parent, end=self._end)

    def _enter(self) -> None:
        super()._enter()
        with _LOCK:
            _OPEN.setdefault(self.id, _OpenWorkflow()).blocks += 1

    def _leave(self) -> dict[str, dict[str, str]]:
        super()._leave()
        with _LOCK:
            opened = _OPEN[self.id]
            opened.blocks -= 1
            if opened.blocks:
                return {}
            del _OPEN[self.id]
        return {url: _authorization(sent) for url, sent in opened.to_end.items()} if self._end else {}


def uninstall() -> None:
    """Restores the methods that the first block wrapped, for tests; the next block wraps them again."""
    with _LOCK:
        while _WRAPPED:
            owner, name, original, wrapper = _WRAPPED.pop()
            # Another library may have wrapped ours; then ours must stay inside of it.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)


def _checked(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a str, not {type(value).__name__}: {value!r}")
    if not value or len(value) > MAX_NAME_CHARS:
        raise ValueError(f"the {what} must have 1 to {MAX_NAME_CHARS} characters, not {len(value)}: {value!r}")
    # Neither controls nor lone surrogates nor outer spaces can stand in an HTTP header.
    if value != value.strip() or any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ValueError(f"the {what} must have no control characters and no spaces around it: {value!r}")
    return value


def _client_options(url: str) -> dict[str, Any]:
    # Loading the certificates takes tens of milliseconds, on the event loop, and plain HTTP needs none.
    return {"timeout": END_TIMEOUT_S, "verify": url.startswith("https:")}


def _authorization(sent: MutableMapping[str, str]) -> dict[str, str]:
    return {"authorization": sent["authorization"]} if "authorization" in sent else {}


def _check(response: httpx.Response) -> None:
    if response.status_code not in NOT_FORECACHE:
        response.raise_for_status()


@contextmanager
def _failure_warns(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The repr of a URL hides its password, that of an error is one line.
        _LOG.warning("the workflow stays open until it idles out: DELETE %r: %r", httpx.URL(url), error)


def _tag_request(request: httpx.Request) -> Callable[[httpx.Response], None]:
    """Adds the headers where they belong. Returns what to call with the response."""
    tag = _TAG.get()
    if tag is None or request.method != "POST":
        return _nothing_to_do
    path = request.url.raw_path.partition(b"?")[0]
    suffix = next((suffix for suffix in LLM_PATHS if path.endswith(suffix)), None)
    if suffix is None:
        return _nothing_to_do
    named = request.headers.get("x-workflow-id", tag.workflow)
    tags = {
        "x-workflow-id": tag.workflow,
        "x-agent-name": tag.agent,
        "x-parent-workflow-id": tag.parent if named == tag.workflow else None,
        "x-workflow-final": "true" if tag.final else None,
    }
    added = [(k.encode(), v.encode()) for k, v in tags.items() if v is not None and k not in request.headers]
    # A new object: one that was read keeps the encoding it guessed, and would fail on non-ASCII added later.
    request.headers = type(request.headers)([*request.headers.raw, *added])
    if tag.workflow is None or named != tag.workflow:
        return _nothing_to_do
    name = "%2E" * len(tag.workflow) if tag.workflow in (".", "..") else quote(tag.workflow, safe="")
    url = request.url.copy_with(raw_path=path.removesuffix(suffix) + b"/workflows/" + name.encode())
    return _remember(tag.workflow, str(url), request.headers)


def _nothing_to_do(response: httpx.Response) -> None:
    pass


def _remember(workflow_id: str, url: str, sent: MutableMapping[str, str]) -> Callable[[httpx.Response], None]:
    """Notes that the workflow is open at `url`, until a final call that none has followed succeeds there."""
    with _LOCK:
        opened = _OPEN.get(workflow_id)
        if opened is None:  # a task or thread that outlived its block
            return _nothing_to_do
        opened.to_end[url] = sent

    def answered(response: httpx.Response) -> None:
        if sent.get("x-workflow-final") == "true" and response.is_success:
            with _LOCK:
                if opened.to_end.get(url) is sent:
                    del opened.to_end[url]

    return answered


_WRAPPED: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []


def _install() -> None:
    if _WRAPPED:
        return
    targets: list[tuple[type, str, Callable[..., Any]]] = [
        (threading.Thread, "start", _tagged_start),
        (ThreadPoolExecutor, "submit", _tagged_submit),
    ]
    for name in ("httpx", "httpx2"):
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            targets += [
                (module.Client, "send", _tagged_send),
                (module.AsyncClient, "send", _tagged_async_send),
            ]
    with _LOCK:
        if _WRAPPED:
            return
        done = []
        for owner, method, wrap in targets:
            original = getattr(owner, method)
            done.append((owner, method, original, functools.wraps(original)(wrap(original))))
            setattr(owner, method, done[-1][3])
        # Last, and at once: who finds the list filled relies on every wrapper.
        _WRAPPED.extend(done)


def _tagged_send(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    def wrapper(client: object, request: httpx.Request, *args: Any, **kwargs: Any) -> httpx.Response:
        answered = _tag_request(request)
        response = send(client, request, *args, **kwargs)
        answered(response)
        return response

    return wrapper


def _tagged_async_send(
    send: Callable[..., Awaitable[httpx.Response]],
) -> Callable[..., Awaitable[httpx.Response]]:
    async def wrapper(client: object, request: httpx.Request, *args: Any, **kwargs: Any) -> httpx.Response:
        answered = _tag_request(request)
        response = await send(client, request, *args, **kwargs)
        answered(response)
        return response

    return wrapper


def _tagged_start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def wrapper(thread: threading.Thread) -> None:
        tag = _TAG.get()
        # A thread that was started already is told so by `start`, and must not lose its `run`.
        if tag is not None and thread.ident is None:
            run = thread.run

            def tagged_run() -> None:
                del thread.run  # else the thread and this function keep each other alive
                _TAG.set(tag)
                run()

            thread.run = tagged_run  # type: ignore[method-assign]
        start(thread)

    return wrapper


def _tagged_submit(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    def wrapper(pool: ThreadPoolExecutor, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        tag = _TAG.get()
        if tag is None:
            return submit(pool, job, *args, **kwargs)

        def tagged_job() -> Any:
            token = _TAG.set(tag)
            try:
                return job(*args, **kwargs)
            finally:
                _TAG.reset(token)

        # Submitting may start a worker thread, which is to outlive the block and must not inherit its tag.
        token = _TAG.set(None)
        try:
            return submit(pool, tagged_job)
        finally:
            _TAG.reset(token)

    return wrapper
