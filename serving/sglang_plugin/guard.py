"""What stands between our code in SGLang's processes and SGLang."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("forecache")


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """SGLang lets a hook's exception end the scheduler. A recorder is not worth that: it is logged, once a hook."""
    failed = False

    @functools.wraps(hook)
    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal failed
        try:
            hook(*args, **kwargs)
        except Exception:
            if not failed:
                logger.exception("forecache: %s failed; the scheduler goes on without it", hook.__qualname__)
            failed = True

    return run
