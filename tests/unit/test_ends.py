"""Ends of workflows reach the engines, also after an engine could not be told of one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
)

from cache_actor.workflows import EndReason, Workflow
from serving import ends
from serving.ends import end_to_tell, tell_ends

LOST = [
    RayActorError(),
    RayTaskError("end_workflows", "its traceback", TimeoutError("the scheduler has left messages unread")),
    BackPressureError(1, 1),
    DeploymentUnavailableError.__new__(DeploymentUnavailableError),
    ReplicaUnavailableError.__new__(ReplicaUnavailableError),
    RequestCancelledError.__new__(RequestCancelledError),
    TimeoutError(),
]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
async def test_the_next_end_is_told_after_one_that_could_not_be(error: Exception) -> None:
    told: list[tuple[str, dict[str, str]]] = []
    both = asyncio.Event()

    async def tell(engine: str, workflows: dict[str, str]) -> None:
        told.append((engine, workflows))
        if engine == "lost":
            raise error
        both.set()

    await _told_both(tell, told, both)


async def test_others_ends_do_not_wait_for_an_engine_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "TELL_LIMIT_S", 0.05)
    told: list[tuple[str, dict[str, str]]] = []
    both = asyncio.Event()

    async def tell(engine: str, workflows: dict[str, str]) -> None:
        told.append((engine, workflows))
        if engine == "lost":
            await asyncio.Event().wait()
        both.set()

    await _told_both(tell, told, both)


async def _told_both(
    tell: Callable[[str, dict[str, str]], Awaitable[None]], told: list[tuple[str, dict[str, str]]], both: asyncio.Event
) -> None:
    ended: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
    ended.put_nowait(("lost", "w1", "final"))
    ended.put_nowait(("well", "w2", "deleted"))
    task = asyncio.create_task(tell_ends(ended, tell))
    waiting = asyncio.create_task(both.wait())
    await asyncio.wait({task, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert told == [("lost", {"w1": "final"}), ("well", {"w2": "deleted"})]
    assert not task.done()
    for one in (task, waiting):
        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (EndReason.FINAL, "final"),
        (EndReason.REQUESTED, "deleted"),
        (EndReason.IDLE_TIMEOUT, None),
        (EndReason.LIMIT, None),
        (None, None),
    ],
)
def test_engines_are_told_only_of_ends_that_clients_ask_for(reason: EndReason | None, told: str | None) -> None:
    workflow = Workflow("w", created=1.0, last_seen=1.0, source="header", end_reason=reason)
    assert end_to_tell(workflow) == told
    assert end_to_tell(None) is None
