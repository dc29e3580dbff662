"""Victim order kept up to date: the evictable leaves of one tier, lowest policy key first.

A heap with lazy repair. A key that has risen since its item was pushed is noticed when the item comes up, and pushed
again; a key that may have *fallen* must be told (`lowered`). So the item of every member has a key that is not above
the member's own, and the first item whose key is right is the victim. O(log n) a change; an eviction rebuilds nothing.
Ties of keys end in `node.id`: the victim is the same on every tensor-parallel rank, whatever order its sets are in.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cache_actor.policies.base import Key

_SLACK = 64


class VictimQueue(set[Any]):
    """The set that SGLang keeps of a tier's evictable leaves, which also knows which of them goes next.

    It stands in for SGLang's plain set: `add` and `discard` are all that SGLang calls.

    Args:
        key: a node's key now. `changes_at` says until when the order stands, in seconds of `clock`.
        tier: whose leaves they are; the entry's field `<tier>_slot` holds the number of a node's newest item.
    """

    def __init__(
        self,
        key: Callable[[Any, float], Key],
        changes_at: Callable[[float], float],
        clock: Callable[[], float],
        tier: str,
    ) -> None:
        super().__init__()
        self.key = key
        self._changes_at = changes_at
        self._clock = clock
        self.tier = tier
        self._slot = f"{tier}_slot"
        self._heap: list[tuple[Key, int, int, Any]] = []
        self._items = 0
        self._fallen: set[Any] = set()
        self._stands_until = float("-inf")

    def add(self, node: Any) -> None:
        if node not in self:
            super().add(node)
            self._push(node, self._clock())

    def lowered(self, nodes: Iterable[Any]) -> None:
        """The nodes' keys may have fallen. Little is done until the next victim is asked for, and nothing for those
        that are no members: they get items with their keys when they are added."""
        self._fallen |= self.intersection(nodes)
        if len(self._fallen) > 4 * len(self) + _SLACK:
            self._settle()

    def first(self) -> Any | None:
        """The member with the lowest key, None when there is none. It stays a member."""
        now = self._clock()
        if now >= self._stands_until or self._crowded():
            self.rebuild()
        elif self._fallen:
            self._settle()
        heap, slot = self._heap, self._slot
        while heap:
            key, _, item, node = heap[0]
            if node not in self or getattr(node.entry, slot) != item:
                heapq.heappop(heap)
                continue
            current = self.key(node, now)
            if current == key:
                return node
            heapq.heapreplace(heap, self._item(node, current))
        return None

    def _settle(self) -> None:
        """Gives the members among the fallen items with their keys of now."""
        now, fallen = self._clock(), self._fallen
        self._fallen = set()
        for node in sorted(self & fallen, key=_by_id):
            self._push(node, now)

    def sample(self, count: int, rng: random.Random) -> Iterator[Any]:
        """Up to `count` members by chance, the same on every tensor-parallel rank; each is put in its place."""
        for _ in range(count if self._heap else 0):
            key, _, item, node = rng.choice(self._heap)
            if node in self and getattr(node.entry, self._slot) == item:
                current = self.key(node, now := self._clock())
                if current < key:
                    self._push(node, now)
                yield node

    def set_aside(self, node: Any) -> None:
        """Passes over a member until it is `lowered` or added again: it could not be evicted this time."""
        setattr(node.entry, self._slot, 0)

    def rebuild(self) -> None:
        """Every member with its key of now: after a change of policy, or when time has changed the order.

        What is set aside stays so, unless it has been lowered since.
        """
        now, fallen = self._clock(), self._fallen
        self._fallen = set()
        self._stands_until = self._changes_at(now)
        members = [node for node in sorted(self, key=_by_id) if getattr(node.entry, self._slot) or node in fallen]
        self._heap = [self._item(node, self.key(node, now)) for node in members]
        heapq.heapify(self._heap)

    def in_order(self) -> list[Any]:
        """All members by their keys, by sorting: what `first` must agree with."""
        now = self._clock()
        return sorted(self, key=lambda node: (self.key(node, now), node.id))

    def _push(self, node: Any, now: float) -> None:
        heapq.heappush(self._heap, self._item(node, self.key(node, now)))
        if self._crowded():  # a cache with room asks for no victim for hours, and outdated items keep dead nodes alive
            self.rebuild()

    def _item(self, node: Any, key: Key) -> tuple[Key, int, int, Any]:
        """A new item of the heap, which takes the place of the node's older ones."""
        self._items += 1
        setattr(node.entry, self._slot, self._items)
        return key, node.id, self._items, node

    def _crowded(self) -> bool:
        return len(self._heap) > 4 * len(self) + _SLACK


def _by_id(node: Any) -> int:
    number: int = node.id
    return number
