"""The limits that look at nothing: none at all, and a number that somebody chose."""

from __future__ import annotations

from typing import ClassVar

from cache_actor.admission.base import LimitController, Signals, register


@register
class NoLimit(LimitController):
    """Everybody comes in."""

    name: ClassVar[str] = "off"

    def observe(self, signals: Signals) -> int | None:
        return None


@register
class FixedLimit(LimitController):
    """Always the same. For comparison: no number is right for long.

    Args:
        workflows: at least 1.
    """

    name: ClassVar[str] = "fixed"

    def __init__(self, workflows: int = 16) -> None:
        if workflows < 1:
            raise ValueError(f"workflows cannot be {workflows}; it is at least 1")
        self._workflows = int(workflows)

    def observe(self, signals: Signals) -> int | None:
        return self._workflows
