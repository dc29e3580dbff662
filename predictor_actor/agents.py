"""Agents by number, so that arrays can be indexed by them: at most so many, the longest unused ones are forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_AGENTS = 512

Ids = npt.NDArray[np.int64]


class Agents:
    """Numbers from 1 for the names in use; 0 stands for nobody: before a workflow's start, or after its end.

    At the limit the name that was used longest ago gives its number to the next.
    """

    def __init__(self, limit: int = MAX_AGENTS) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}; give room for at least 1 agent")
        self.limit = limit
        self._names: list[str] = []
        # In the order of their latest use, the oldest first.
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their numbers, from number 1."""
        return tuple(self._names)

    def get(self, name: str) -> int:
        """Its number; 0 if it has none."""
        return self._ids.get(name, 0)

    def use(self, name: str) -> tuple[int, bool]:
        """Its number, and whether that is new to it: then what stood under the number before must be forgotten."""
        number = self._ids.pop(name, 0)
        fresh = number == 0
        if fresh and len(self._names) < self.limit:
            self._names.append(name)
            number = len(self._names)
        elif fresh:
            number = self._ids.pop(next(iter(self._ids)))
            self._names[number - 1] = name
        self._ids[name] = number
        return number, fresh

    def ids(self, names: Sequence[str]) -> Ids:
        """Numbers of many names; -1 for a name that has none."""
        look_up = self._ids.get
        return np.array([look_up(name, -1) for name in names], np.int64)
