"""Forecache's log inside Ray Serve: the same handlers, files and format as Serve's own."""

from __future__ import annotations

import logging


def log_through_serve() -> None:
    """Call once in a replica. Elsewhere (command line, tests) the logger `forecache` is an ordinary one."""
    logger = logging.getLogger("forecache")
    logger.parent = logging.getLogger("ray.serve")
    logger.setLevel(logging.INFO)
