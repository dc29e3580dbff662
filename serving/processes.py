"""How an engine's processes are ended so that nothing of them is left."""

from __future__ import annotations

import contextlib
from multiprocessing import resource_tracker
from typing import Any

import psutil

_END_LIMIT_S = 30


def end_processes() -> None:
    """Ends every child of this process. The semaphores they leave behind are removed.

    That is the work of Python's resource tracker, a child as well, and the only one that may end by itself: SGLang's
    shutdown kills it with the others, and the semaphores stay in /dev/shm.
    """
    tracker: Any = resource_tracker._resource_tracker
    children = [child for child in psutil.Process().children(recursive=True) if child.pid != tracker._pid]
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    _, alive = psutil.wait_procs(children, timeout=_END_LIMIT_S)
    if not alive:  # a living child would keep the tracker waiting
        tracker._stop()
