"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("forecache", deadline=None)
settings.load_profile("forecache")


@pytest.fixture(autouse=True)
def _audible_log() -> Iterator[None]:
    """An engine of another test in this process may have silenced the root logger; our loggers are heard."""
    logger = logging.getLogger("forecache")
    level = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(level)
