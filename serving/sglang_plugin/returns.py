"""What has left the tree and comes again: what that teaches, and what is known of it from before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from serving.sglang_plugin.counters import POLICY_NS
from serving.sglang_plugin.ghosts import Ghosts
from serving.sglang_plugin.memory import Memory
from serving.sglang_plugin.prefetch import is_moving
from serving.sglang_plugin.reuse import Watches

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache

# What is remembered of a node that has left the tree, under a policy that learns.
Past = tuple[Watches, Memory] | None


class Returns:
    """Ghosts of what has left a cache's tree, and the pieces of nodes that are back and not touched yet."""

    def __init__(self, cache: ForecacheCache) -> None:
        self._cache = cache
        self._ghosts = Ghosts()
        self._pieces: dict[int, list[tuple[int, Memory]]] = {}  # by the node's id: tokens, and what is known of them

    def clear(self) -> None:
        """The tree was emptied on demand."""
        self._ghosts.clear()
        self._pieces.clear()

    def left(self, node: Any) -> None:
        """A node, a leaf, leaves the tree; what to learn from it if it comes again is remembered."""
        cache = self._cache
        begin = time.perf_counter_ns()
        self._pieces.pop(node.id, None)
        past = None if cache.learning is None else (cache.learning.left(node), Memory.of(node.entry))
        self._ghosts.lost(node, past)
        cache.ledger.drop(node)
        cache.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def came(self, node: Any, computed: bool = True) -> None:
        """A node was put into the tree: what of it had been there before is a lesson; if it was computed, a regret."""
        pieces: list[tuple[int, Past]] = []
        if tokens := self._ghosts.came(node, lambda tokens, past: pieces.append((tokens, past))):
            self._cache.counters["regret"] += tokens if computed else 0
            self._learn(node, pieces)

    def _learn(self, node: Any, pieces: list[tuple[int, Past]]) -> None:
        """What had left in pieces is (the beginning of) one node now."""
        learning = self._cache.learning
        if learning is None:
            return
        remembered: list[tuple[int, Memory]] = []
        for tokens, past in pieces:
            if past is None:  # it left under another policy
                break
            watches, memory = past
            learning.returned(watches)
            if remembered and remembered[-1][1] == memory:  # it was cut when its end left before its beginning
                tokens += remembered.pop()[0]
            remembered.append((tokens, memory))
        if remembered:
            self._pieces[node.id] = remembered

    def cut(self, path: list[Any]) -> list[tuple[Any, Memory]]:
        """Cuts nodes of the path into the pieces that they left in; the pieces with what is known of them.

        Otherwise what is one node with something new after it would be taken for new as a whole: an agent's anchor for
        a part of the prompt that brings it back.
        """
        cache = self._cache
        found: list[tuple[Any, Memory]] = []
        for node in path if self._pieces else ():
            if node.id not in self._pieces or is_moving(node):
                continue
            for tokens, memory in self._pieces.pop(node.id):
                if tokens >= len(node.key) or tokens % cache.page_size:
                    found.append((node, memory))
                    break
                found.append((cache.split_node(node, tokens), memory))
        return found
