"""Prompts that are given as numbered blocks become few segments, without any loss of what is shared."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from serving.benchmark.workloads.base import Segment

Interval = tuple[int, int]


def intervals(runs: Iterable[tuple[int, int]], block_size: int, prompt_tokens: int) -> tuple[list[Interval], int]:
    """A prompt as intervals of text positions, and how many tokens follow that no block holds.

    Token t of block b has the position b · block_size + t, so equal positions are equal text. The last block is cut
    where the prompt ends.
    """
    left = prompt_tokens
    found = []
    for first, count in runs:
        length = min(count * block_size, left)
        if length > 0:
            found.append((first * block_size, first * block_size + length))
        left -= length
    return found, left


class Cutter:
    """Cuts intervals into segments that are as long as exact sharing allows.

    Wherever an interval of any prompt begins or ends, all prompts are cut. What lies between two neighbouring cuts is
    then whole in every prompt or absent from it, so two prompts that share a text share its segments, to the token.
    There are at most two cuts for each interval, however many blocks it spans.

    Args:
        scope: begins the segments' ids; equal positions of one scope are equal text.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._bounds: set[int] = set()
        self._cuts: list[int] | None = None
        self._segments: dict[int, Segment] = {}

    def learn(self, found: Iterable[Interval]) -> None:
        """To be told of all intervals before the first is cut."""
        assert self._cuts is None
        for interval in found:
            self._bounds.update(interval)

    def cut(self, interval: Interval) -> list[Segment]:
        """The interval's segments, in order; equal ones are the same object."""
        if self._cuts is None:
            self._cuts = sorted(self._bounds)
        first = bisect_left(self._cuts, interval[0])
        last = bisect_right(self._cuts, interval[1]) - 1
        return [self._segment(self._cuts[place], self._cuts[place + 1]) for place in range(first, last)]

    def _segment(self, start: int, end: int) -> Segment:
        known = self._segments.get(start)
        if known is None:
            known = self._segments[start] = Segment(f"{self._scope}@{start}", end - start)
        return known
