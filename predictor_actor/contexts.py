"""What follows the last agents, two or more: counts in a table of bounded size, looked up many at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor_actor.agents import MAX_AGENTS, Ids

# Followers that a context remembers apart, and contexts that share a place by their hash.
FOLLOWERS = 6
# Longer contexts do not fit a key.
MAX_ORDER = 6
WAYS = 8
# Contexts that the table has room for, for each agent.
CONTEXTS_PER_AGENT = 16
_BITS = 10
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
assert 1 << _BITS > MAX_AGENTS + 1

EMPTY = np.uint64(0)
Keys = npt.NDArray[np.uint64]


def keys_of(contexts: Ids) -> Keys:
    """One key for each row of (B, order) agents' numbers, below 2^_BITS each. Contexts of different order differ."""
    keys = np.full(len(contexts), contexts.shape[1], np.uint64)
    for column in contexts.T:
        keys = (keys << np.uint64(_BITS)) | column.astype(np.uint64)
    return keys


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
        self._make(32)

    def _make(self, sets: int) -> None:
        self._keys = np.zeros((sets, WAYS), np.uint64)
        self._followers = np.zeros((sets, WAYS, FOLLOWERS), np.uint16)
        self._counts = np.zeros((sets, WAYS, FOLLOWERS), np.uint8 if self._memory <= 255 else np.uint16)

    @classmethod
    def restored(cls, tables: Mapping[str, npt.NDArray[Any]], memory: int) -> Contexts:
        """One that goes on from another's `tables`.

        Raises:
            ValueError: they are not what such a table can be.
        """
        found = cls(memory)
        keys, followers, counts = (tables[name] for name in ("keys", "followers", "counts"))
        sets = len(keys)
        if sets < 1 or sets & (sets - 1) or keys.shape != (sets, WAYS) or followers.shape != (sets, WAYS, FOLLOWERS):
            raise ValueError(f"a table of contexts cannot have the shapes {keys.shape} and {followers.shape}")
        if counts.shape != followers.shape:
            raise ValueError(f"counts have the shape {counts.shape}, their followers {followers.shape}")
        if counts.size and int(counts.sum(axis=2, dtype=np.int64).max()) > memory:
            raise ValueError(f"counts of a context add up to more than its memory, {memory}")
        found._make(sets)
        found._keys[:], found._followers[:], found._counts[:] = keys, followers, counts
        return found

    def tables(self) -> dict[str, npt.NDArray[Any]]:
        """All that it holds, as copies."""
        return {"keys": self._keys.copy(), "followers": self._followers.copy(), "counts": self._counts.copy()}

    def nbytes(self) -> int:
        """Memory of the table."""
        return self._keys.nbytes + self._followers.nbytes + self._counts.nbytes

    def reserve(self, agents: int) -> None:
        """Gives the table room for the contexts of so many agents; what it holds stays."""
        sets = len(self._keys)
        while sets * WAYS < agents * CONTEXTS_PER_AGENT:
            sets *= 2
        if sets == len(self._keys):
            return
        keys, followers, counts = self._keys, self._followers, self._counts
        self._make(sets)
        for place in np.argwhere(keys != EMPTY):
            row, way = self._claim(keys[tuple(place)])
            self._followers[row, way], self._counts[row, way] = followers[tuple(place)], counts[tuple(place)]

    def count(self, key: np.uint64, follower: int) -> None:
        """The agent of this number has followed the context (0: the workflow has ended)."""
        row, way = self._claim(key)
        followers, counts = self._followers[row, way], self._counts[row, way]
        found = np.flatnonzero((followers == follower) & (counts > 0))
        place = int(found[0]) if len(found) else int(counts.argmin())
        if not len(found):
            followers[place], counts[place] = follower, 0
        counts[place] += 1
        if int(counts.sum()) >= self._memory:
            counts >>= 1

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
        mixed: npt.NDArray[np.int64] = ((keys * _MULTIPLIER) >> np.uint64(40)).astype(np.int64)
        return mixed & (len(self._keys) - 1)

    def _claim(self, key: np.uint64) -> tuple[int, int]:
        """Where the context is, or is to be."""
        row = int(self._set_of(np.array([key], np.uint64))[0])
        ways = self._keys[row]
        found = np.flatnonzero(ways == key)
        if len(found):
            return row, int(found[0])
        # An empty place counts nothing, so it goes first.
        way = int(self._counts[row].sum(axis=1, dtype=np.int64).argmin())
        ways[way] = key
        self._counts[row, way] = 0
        return row, way
