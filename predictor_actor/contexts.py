"""What follows the last agents, two or more: counts in a table of bounded size, looked up many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor_actor.agents import MAX_AGENTS, Ids

# Followers that a context remembers apart, and contexts that share a place by their hash.
FOLLOWERS = 6
# Longer contexts do not fit a key.
MAX_ORDER = 6
WAYS = 8
# Contexts that the table has room for, for each agent, and sets that it has at least.
CONTEXTS_PER_AGENT = 16
LEAST_SETS = 32
_BITS = 10
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1
_SHIFT = 40
_MIXED_BITS = 64 - _SHIFT
assert 1 << _BITS > MAX_AGENTS + 1

EMPTY = np.uint64(0)
Keys = npt.NDArray[np.uint64]


def keys_of(contexts: Ids) -> Keys:
    """One key for each row of (B, order) agents' numbers, below 2^_BITS each. Contexts of different order differ."""
    return keys_in(packed(contexts), contexts.shape[1])


def packed(paths: Ids) -> Keys:
    """Each row of agents' numbers as one number, the latest agent in its lowest bits; of at most MAX_ORDER agents."""
    found = np.zeros(len(paths), np.uint64)
    for column in paths.T:
        found = found << np.uint64(_BITS) | column.astype(np.uint64)
    return found


def keys_in(paths: Keys, order: int) -> Keys:
    """The keys of packed paths' last `order` agents."""
    return paths & _mask(order) | np.uint64(order << order * _BITS)


def followed(paths: Keys, agents: Ids, order: int) -> Keys:
    """Packed paths with one more agent each, of which the last `order` stay."""
    return (paths << np.uint64(_BITS) | agents.astype(np.uint64)) & _mask(order)


def latest_of(paths: Keys) -> Ids:
    """The latest agent of each packed path."""
    return (paths & _mask(1)).astype(np.int64)


def _mask(order: int) -> np.uint64:
    return np.uint64((1 << order * _BITS) - 1)


def key_of(context: Sequence[int]) -> int:
    """That of one context."""
    key = len(context)
    for number in context:
        key = key << _BITS | number
    return key


def _sets_for(least: int) -> int:
    """So many at least, of sizes that grow by a third or a half, so that a table is seldom made anew."""
    sets = LEAST_SETS
    while sets < least:
        sets = sets * 4 // 3 if sets % 3 == 0 else sets * 3 // 2
    return sets


class Contexts:
    """Counts of what followed each context. A set-associative table: a context that finds its set full replaces the one
    that was seen least, and a follower that finds its context full the one that was counted least.

    Args:
        memory: a context's counts are halved when they add up to this, so that what was seen lately counts more.
    """

    def __init__(self, memory: int = 128) -> None:
        if not 2 <= memory < 1 << 15:
            raise ValueError(f"memory is {memory}; give from 2 to {(1 << 15) - 1} calls")
        self._memory = memory
        self._make(LEAST_SETS, np.min_scalar_type(0))

    def _make(self, sets: int, numbers: np.dtype[Any]) -> None:
        self._keys = np.zeros((sets, WAYS), np.uint64)
        self._followers = np.zeros((sets, WAYS, FOLLOWERS), numbers)
        self._counts = np.zeros((sets, WAYS, FOLLOWERS), np.min_scalar_type(self._memory))

    @classmethod
    def restored(cls, tables: Mapping[str, npt.NDArray[Any]], memory: int) -> Contexts:
        """One that goes on from another's `tables`, whatever their size.

        Raises:
            ValueError: they are not what such a table can be.
        """
        found = cls(memory)
        keys, followers, counts = (tables[name] for name in ("keys", "followers", "counts"))
        sets = len(keys)
        if sets < 1 or keys.shape != (sets, WAYS) or followers.shape != (sets, WAYS, FOLLOWERS):
            raise ValueError(f"a table of contexts cannot have the shapes {keys.shape} and {followers.shape}")
        if counts.shape != followers.shape:
            raise ValueError(f"counts have the shape {counts.shape}, their followers {followers.shape}")
        if counts.size and int(counts.sum(axis=2, dtype=np.int64).max()) > memory:
            raise ValueError(f"counts of a context add up to more than its memory, {memory}")
        found._make(_sets_for(sets), np.min_scalar_type(max(0, int(followers.max(initial=0)))))
        found._take_over(keys, followers, counts)
        return found

    def tables(self) -> dict[str, npt.NDArray[Any]]:
        """All that it holds, as copies."""
        return {"keys": self._keys.copy(), "followers": self._followers.copy(), "counts": self._counts.copy()}

    def nbytes(self) -> int:
        """Memory of the table."""
        return self._keys.nbytes + self._followers.nbytes + self._counts.nbytes

    def reserve(self, agents: int) -> None:
        """Gives the table room for the contexts of so many agents. What it holds stays, but for what was seen least of
        more contexts than share a place."""
        sets = max(len(self._keys), _sets_for(-(-agents * CONTEXTS_PER_AGENT // WAYS)))
        numbers = np.promote_types(self._followers.dtype, np.min_scalar_type(agents))
        if sets == len(self._keys) and numbers == self._followers.dtype:
            return
        before = self._keys, self._followers, self._counts
        self._make(sets, numbers)
        self._take_over(*before)

    def _take_over(
        self, keys: Keys, followers: npt.NDArray[np.integer[Any]], counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        held = np.argwhere(keys != EMPTY)
        seen = counts[tuple(held.T)].sum(axis=1, dtype=np.int64)
        for place in map(tuple, held[np.argsort(seen, kind="stable")]):  # who comes last, stays
            row, way = self._claim(int(keys[place]))
            self._followers[row, way], self._counts[row, way] = followers[place], counts[place]

    def count(self, key: int, follower: int) -> None:
        """The agent of this number has followed the context (0: the workflow has ended)."""
        row, way = self._claim(key)
        # Of so few numbers lists are faster than arrays.
        followers, counts = self._followers[row, way].tolist(), self._counts[row, way].tolist()
        place = next((i for i, each in enumerate(followers) if each == follower and counts[i]), -1)
        if place < 0:
            place = counts.index(min(counts))
            self._followers[row, way, place] = follower
            counts[place] = 0
        counts[place] += 1
        if sum(counts) >= self._memory:
            counts = [count >> 1 for count in counts]
        self._counts[row, way] = counts

    def forget(self, agent: int) -> None:
        """Drops every context that the number is in, and the number among followers."""
        for shift in range(0, MAX_ORDER * _BITS, _BITS):
            held = (self._keys >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
            # Above its agents a key has its order, which is no agent.
            known = self._keys >> np.uint64(shift + _BITS) != EMPTY
            self._keys[(held == agent) & known] = EMPTY
        self._counts[self._followers == agent] = 0
        self._counts[self._keys == EMPTY] = 0

    def look_up(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """What has followed contexts.

        Returns:
            Which of the keys are held, shape (H,); their followers, and how often each was counted, both of shape
            (H, FOLLOWERS). A follower that was counted 0 times stands for none.
        """
        sets = self._set_of(keys)
        ways = self._keys[sets] == keys[:, None]
        rows = np.flatnonzero(ways.any(axis=1))
        where = (sets[rows], ways[rows].argmax(axis=1))
        return rows, self._followers[where].astype(np.int64), self._counts[where].astype(np.float32)

    def _set_of(self, keys: Keys) -> npt.NDArray[np.int64]:
        mixed: npt.NDArray[np.int64] = ((keys * _MULTIPLIER) >> np.uint64(_SHIFT)).astype(np.int64)
        return mixed * len(self._keys) >> _MIXED_BITS

    def _claim(self, key: int) -> tuple[int, int]:
        """Where the context is, or is to be."""
        row = ((key * int(_MULTIPLIER) & _WORD) >> _SHIFT) * len(self._keys) >> _MIXED_BITS
        ways = self._keys[row].tolist()
        if key in ways:
            return row, ways.index(key)
        # An empty place counts nothing, so it goes first.
        seen = [sum(counts) for counts in self._counts[row].tolist()]
        way = seen.index(min(seen))
        self._keys[row, way] = key
        self._counts[row, way] = 0
        return row, way
