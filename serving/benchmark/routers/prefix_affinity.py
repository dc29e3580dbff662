"""After Ray's `PrefixCacheAffinityRouter` (ray.llm 2.60): where the longest known prefix of the prompt was sent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from serving.benchmark.routers.power_of_two import PowerOfTwo
from serving.routing.base import Decision, RoutedCall, Router, register

Piece = tuple[str, int]


class _Node:
    __slots__ = ("children", "engines", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.children: dict[Piece, _Node] = {}
        self.engines: dict[str, float] = {}  # who was sent it, and when last


class PrefixTree:
    """What was sent where: Ray's tree, over pieces of prompts instead of characters.

    Attributes:
        tokens: of each engine, what it was sent of distinct prefixes.
    """

    def __init__(self) -> None:
        self._root = _Node(0)
        self.tokens: Counter[str] = Counter()

    def insert(self, prompt: Sequence[Piece], engine: str, now: float) -> None:
        node = self._root
        for piece in prompt:
            node = node.children.setdefault(piece, _Node(piece[1]))
            if engine not in node.engines:
                self.tokens[engine] += node.tokens
            node.engines[engine] = now

    def match(self, prompt: Sequence[Piece], engines: Sequence[str]) -> tuple[int, list[str]]:
        """The tokens of the longest prefix that one of these engines was sent, and those that were sent it."""
        node, tokens = self._root, 0
        found: list[str] = list(engines)
        for piece in prompt:
            following = node.children.get(piece)
            having = [one for one in engines if one in following.engines] if following is not None else []
            if following is None or not having:
                break
            node, tokens, found = following, tokens + following.tokens, having
        return tokens, found

    def remove(self, engine: str) -> None:
        self.shrink(engine, 0)
        del self.tokens[engine]

    def shrink(self, engine: str, most: int) -> None:
        """Forgets what an engine was sent longest ago, until no more than `most` tokens are left."""
        theirs = sorted(self._of(engine), key=lambda node: node.engines[engine])
        for node in theirs:
            if self.tokens[engine] <= most:
                break
            del node.engines[engine]
            self.tokens[engine] -= node.tokens
        self._prune(self._root)

    def _of(self, engine: str) -> list[_Node]:
        found, waiting = [], [self._root]
        while waiting:
            for child in waiting.pop().children.values():
                if engine in child.engines:  # whoever has a prefix was sent all that is before
                    found.append(child)
                    waiting.append(child)
        return found

    def _prune(self, root: _Node) -> None:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            node.children = {piece: child for piece, child in node.children.items() if child.engines}
            waiting.extend(node.children.values())


@register("prefix-affinity")
class PrefixAffinity(Router):
    """Ray's rules with Ray's defaults.

    While the numbers of calls in flight differ by no more than `imbalanced_threshold`: the engines that were sent the
    longest prefix of the prompt; if that is less than `match_rate_threshold` of it, those that were sent least of all.
    Of several, Serve takes the one with the fewest calls in flight. Otherwise two choices by chance.

    Args:
        imbalanced_threshold: calls; Ray's default is infinity, so that load never counts.
        eviction_threshold_tokens: what is remembered of an engine; beyond it the oldest goes, down to nine tenths, each
            `eviction_interval_s`. Ray counts characters and by default evicts nothing.
        seed: of the choices by chance.
    """

    reads_prompts: ClassVar[bool] = True

    def __init__(
        self,
        imbalanced_threshold: float = math.inf,
        match_rate_threshold: float = 0.1,
        eviction_threshold_tokens: float = math.inf,
        eviction_interval_s: float = 10.0,
        seed: int = 0,
    ) -> None:
        self._imbalanced = imbalanced_threshold
        self._match_rate = match_rate_threshold
        self._most = eviction_threshold_tokens
        self._every = eviction_interval_s
        self._next_eviction = -math.inf
        self._by_chance = PowerOfTwo(seed)
        self._engines: list[str] = []
        self._tree = PrefixTree()

    def set_engines(self, engines: Iterable[str]) -> None:
        wanted = sorted(set(engines))
        for gone in set(self._engines) - set(wanted):
            self._tree.remove(gone)
        for new in set(wanted) - set(self._engines):
            self._tree.tokens[new] = 0
        self._engines = wanted
        self._by_chance.set_engines(wanted)

    def drop_engine(self, engine: str) -> None:
        self.set_engines(one for one in self._engines if one != engine)

    def route(self, call: RoutedCall, running: Mapping[str, int], now: float) -> Decision | None:
        if not self._engines:
            return None
        decision = self._by_prefix(call, running) or self._by_chance.route(call, running, now)
        if decision is not None:
            self._tree.insert(call.pieces, decision.engine, now)
        self._evict(now)
        return decision

    def _by_prefix(self, call: RoutedCall, running: Mapping[str, int]) -> Decision | None:
        loads = [running.get(engine, 0) for engine in self._engines]
        if max(loads) - min(loads) > self._imbalanced:
            return None
        matched, engines = self._tree.match(call.pieces, self._engines)
        tokens = sum(length for _, length in call.pieces)
        if tokens and matched / tokens >= self._match_rate:
            return Decision(min(engines, key=lambda one: (running.get(one, 0), one)), "anchor")
        least = min(self._tree.tokens[one] for one in self._engines)
        smallest = [one for one in self._engines if self._tree.tokens[one] == least]
        return Decision(min(smallest, key=lambda one: (running.get(one, 0), one)), "least-loaded")

    def _evict(self, now: float) -> None:
        if now < self._next_eviction or self._most == math.inf:
            return
        self._next_eviction = now + self._every
        for engine in self._engines:
            if self._tree.tokens[engine] > self._most:
                self._tree.shrink(engine, int(0.9 * self._most))
