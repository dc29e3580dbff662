"""What each workflow has lost to evictions, gathered until somebody is told."""

from __future__ import annotations

from collections import Counter

from cache_actor.messages import Eviction
from serving.sglang_plugin.entries import Entry

# A node that more workflows own is nobody's in particular.
MAX_OWNERS = 4
# What happens beyond so many between two reports is counted in the engine's counters alone.
MAX_KEPT = 1024


class Losses:
    """Tokens by workflow, tier and reason; at most MAX_KEPT of them."""

    def __init__(self) -> None:
        self._tokens: Counter[tuple[str, str, str]] = Counter()

    def lost(self, entry: Entry, tier: str, reason: str, tokens: int) -> None:
        """A node of so many tokens leaves a tier."""
        if len(entry.owners) > MAX_OWNERS:
            return
        names = [owner.workflow for owner in entry.owners]
        if not names and entry.past == 1 and entry.last is not None:
            names = [entry.last]
        for name in names:
            key = (name, tier, reason)
            if key in self._tokens or len(self._tokens) < MAX_KEPT:
                self._tokens[key] += tokens

    def take(self) -> list[Eviction]:
        """What was lost since this was asked last."""
        taken = [Eviction(*key, tokens) for key, tokens in self._tokens.items()]
        self._tokens.clear()
        return taken
