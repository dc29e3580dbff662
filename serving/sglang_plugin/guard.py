"""What stands between our code in SGLang's processes and SGLang."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("forecache")

LOG_PERIOD_S = 60.0


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """SGLang lets a hook's exception end the scheduler. Ours are not worth that: they are logged, and counted.

    A hook that fails at every step is logged once in `LOG_PERIOD_S`, with how often it has failed so far: whoever reads
    the log later sees that it still does, and why now.
    """
    failures = 0
    next_log = -LOG_PERIOD_S

    @functools.wraps(hook)
    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal failures, next_log
        try:
            hook(*args, **kwargs)
        except Exception:
            failures += 1
            now = time.monotonic()
            if now >= next_log:
                next_log = now + LOG_PERIOD_S
                name = hook.__qualname__
                logger.exception("forecache: %s failed (%d so far); the scheduler goes on without it", name, failures)

    return run
