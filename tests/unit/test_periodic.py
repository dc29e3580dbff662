"""Work that goes on for ever."""

from __future__ import annotations

import asyncio

import pytest

from serving.periodic import every


async def test_what_fails_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    enough = asyncio.Event()

    def sometimes() -> None:
        done.append(len(done))
        if len(done) >= 5:
            enough.set()
        if len(done) % 2:
            raise RuntimeError("an odd one")

    task = asyncio.create_task(every(0.001, sometimes))
    async with asyncio.timeout(10):
        await enough.wait()
    assert not task.done()
    task.cancel()
    assert "sometimes failed" in caplog.text
    assert "an odd one" in caplog.text
