"""Full collections are seldom while a replica serves, and as they were when it does not any more."""

from __future__ import annotations

import asyncio
import gc

import pytest

from serving import garbage


async def test_full_collections_come_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PERIOD_S", 0.01)
    before = gc.get_threshold()
    collections = gc.get_stats()[2]["collections"]
    task = asyncio.create_task(garbage.collect_seldom())
    async with asyncio.timeout(20):
        while gc.get_stats()[2]["collections"] < collections + 2:
            await asyncio.sleep(0.005)
    assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold()[2] > 1_000_000
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == before
