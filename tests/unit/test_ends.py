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

from serving import ends
from serving.ends import tell_ends

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
    ended.put_nowait(("well", "w2", "idle"))
    task = asyncio.create_task(tell_ends(ended, tell))
    waiting = asyncio.create_task(both.wait())
    await asyncio.wait({task, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert told == [("lost", {"w1": "final"}), ("well", {"w2": "idle"})]
    assert not task.done()
    for one in (task, waiting):
        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one
