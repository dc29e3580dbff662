"""SGLang's own order: the least recently used first, whatever is known of workflows."""

from __future__ import annotations

from dataclasses import dataclass

from cache_actor.policies.base import EvictionPolicy, Key, NodeFacts, register


@register
@dataclass(frozen=True, slots=True)
class Lru(EvictionPolicy):
    """The least recently used first. The only policy that does not put retired nodes first."""

    name = "lru"

    def key(self, node: NodeFacts, now: float) -> Key:
        return (node.last_access,)
