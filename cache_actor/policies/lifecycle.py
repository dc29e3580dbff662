"""PBKV's lifecycle-aware eviction (PBKV-LAE, arXiv 2605.06472): no forecast, only which workflows have ended."""

from __future__ import annotations

from dataclasses import dataclass

from cache_actor.policies.base import EvictionPolicy, Key, NodeFacts, after_retired, register


@register
@dataclass(frozen=True, slots=True)
class Lifecycle(EvictionPolicy):
    """Retired nodes first, then the least recently used.

    strict: dormant anchors count as retired, PBKV to the letter.
    """

    name = "lifecycle"

    strict: bool = False

    def __post_init__(self) -> None:
        self._check_choice("strict", (False, True))

    def key(self, node: NodeFacts, now: float) -> Key:
        return after_retired(node)
