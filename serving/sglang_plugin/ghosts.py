"""Regret: tokens that had been in the cache, were thrown out of the tree, and had to be computed again.

Of each node that leaves the tree a ghost stays: where it began, where it ended, how long it was. Positions in the space
of all prefixes are told apart by a polynomial hash over absolute token positions, which does not depend on how the tree
cut the prefix into nodes: the hash of a longer prefix is that of the shorter one plus the terms of what follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_BASE = 0x9E3779B97F4A7C15  # odd, and not close to a power of two
_GROWTH = 1 << 14

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Ghost:
    tokens: int
    end: int
    mark: Any


class Ghosts:
    """The last nodes that left the tree, at most `limit`; the oldest are forgotten first."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._ghosts: OrderedDict[tuple[int, int, Any], _Ghost] = OrderedDict()
        self._powers: Words = np.ones(1, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._ghosts)

    def clear(self) -> None:
        """The tree was emptied on demand: what comes now is computed for that, and nothing to regret."""
        self._ghosts.clear()

    def lost(self, node: Any, mark: Any = None) -> None:
        """`node`, a leaf that still knows its parent, is about to leave the tree. O(tokens of its path).

        Args:
            mark: told to whoever asks when it comes again.
        """
        tokens = _tokens(node)
        if not len(tokens):
            return
        begin, position = self._end_of(node.parent)
        end = self._after(begin, position, tokens)
        place = (begin, int(tokens[0]), _namespace(node))
        self._ghosts[place] = _Ghost(len(tokens), end, mark)
        self._ghosts.move_to_end(place)
        if len(self._ghosts) > self._limit:
            self._ghosts.popitem(last=False)

    def came(self, node: Any, returned: Callable[[int, Any], None] = lambda tokens, mark: None) -> int:
        """`node` was computed and put into the tree; how many of its tokens had been there before.

        Args:
            returned: told of the pieces that they had left in, from the node's beginning on: tokens and mark.
        """
        if not self._ghosts:
            return 0
        tokens, namespace = _tokens(node), _namespace(node)
        place, position = self._end_of(node.parent)
        regret = 0
        while regret < len(tokens):
            key = (place, int(tokens[regret]), namespace)
            ghost = self._ghosts.get(key)
            if ghost is None:
                return regret
            piece = tokens[regret : regret + ghost.tokens]
            place = self._after(place, position + regret, piece)
            if len(piece) == ghost.tokens and place != ghost.end:
                return regret  # it began alike and went another way
            del self._ghosts[key]
            returned(len(piece), ghost.mark)
            regret += len(piece)
        return regret

    def _end_of(self, node: Any) -> tuple[int, int]:
        """Hash and length of the prefix that ends with `node`."""
        path: list[Any] = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        place, position = 0, 0
        for one in reversed(path):
            tokens = _tokens(one)
            place = self._after(place, position, tokens)
            position += len(tokens)
        return place, position

    def _after(self, place: int, position: int, tokens: Words) -> int:
        end = position + len(tokens)
        if end > len(self._powers):
            self._grow(end)
        # Unsigned arithmetic wraps around, which is what the hash wants.
        term = (tokens + np.uint64(1)) * self._powers[position:end]
        return (place + int(term.sum(dtype=np.uint64))) & 0xFFFF_FFFF_FFFF_FFFF

    def _grow(self, length: int) -> None:
        powers = np.full(length + _GROWTH, _BASE, dtype=np.uint64)
        powers[0] = 1
        self._powers = np.cumprod(powers, dtype=np.uint64)


def _tokens(node: Any) -> Words:
    return np.asarray(node.key.raw_token_ids()[: len(node.key)], dtype=np.int64).astype(np.uint64)


def _namespace(node: Any) -> Any:
    return node.key.extra_key, node.key.cache_salt
