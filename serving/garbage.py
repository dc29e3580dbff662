"""When a process looks for garbage that reference counts do not free."""

from __future__ import annotations

import asyncio
import gc

PERIOD_S = 600.0
_NEVER = 1 << 30


async def collect_seldom() -> None:
    """For ever, as a task of a replica that keeps much: full collections every PERIOD_S, and at no other time.

    Python makes one whenever a quarter more objects live than at the last. Each stops the process for as long as it
    takes to look at all of them, a tenth of a second for the state of 12,800 workflows; and it finds next to nothing,
    for that state has no cycles. Collections of what is young go on as ever.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        while True:
            await asyncio.sleep(PERIOD_S)
            gc.collect()
    finally:
        gc.set_threshold(*before)
