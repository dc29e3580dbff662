"""A table of situations and how nodes fared in them, with back-off from special situations to general ones.

The label of an observation is exp(-d / r): d is how many tokens were new to the tier until the node was used again
(infinite if never), r how many the tier takes in while a node stays. It is the probability that the node is used
before it leaves, if the time it stays is exponentially distributed with mean r. Under that assumption the hits per
token and unit of time that keeping the node buys (hit density, Beckmann and Sanchez, "LHD", NSDI 2018) rise and fall
with it, so one number orders all nodes, and both the probability and the time of the next use are in it. Counting
tokens instead of seconds adapts the window to the load: a tier without traffic forgets nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_CELLS = 2048
# What is not known is neither likely nor unlikely: equal for all, so that recency decides.
PRIOR = 0.5
# Chances are told apart in steps of their square roots, so that a little more evidence moves no node.
_GRID = 64


class Situation(NamedTuple):
    """What is known of a node when its chance is asked for, from the general to the special.

    state: `private`, `shared`, `dormant` or `unnamed`.
    steps: calls of its workflow since it was last used; of a shared node, how many workflows it has. In classes.
    uses: calls that have used it, in classes; 0 if it was only generated and never part of a prompt.
    forecast: value of the agent that used it last, in classes; of a shared node, of all. None: there is no forecast.
    agent, last_agent: who made the workflow's latest call, and who used the node last.
    previous: who made the workflow's call before the latest.
    returned: whether it had left the tree, and was computed again.
    """

    state: str
    steps: int | None = None
    uses: int | None = None
    forecast: int | None = None
    agent: str | None = None
    last_agent: str | None = None
    previous: str | None = None
    returned: int | None = None


# How much of a situation each level of the table looks at, and the features that its last part belongs to.
LEVELS = ((2, "steps"), (3, "uses"), (4, "forecast"), (6, "agents"), (7, "previous"), (8, "returned"))


# For each situation, or beginning of one: observations, and the sum of their labels.
Cells = dict[tuple[object, ...], list[float]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a chance is what it is: one level of the table. `chance` is what is believed from this level up.

    situation: the parts of it that this level looks at and that are known, by their names.
    observations: how many there were; old ones count for less.
    mean: of their labels.
    """

    situation: dict[str, str | int]
    observations: float
    mean: float
    chance: float


class ReuseTable:
    """Learns and tells chances of reuse; at most `MAX_CELLS` situations, the most special, least seen are forgotten.

    Args:
        features: the parts of a situation that count.
        evidence: observations that weigh as much as the level above.
        memory: observations of a cell beyond which old ones are halved.
    """

    def __init__(self, features: Sequence[str], evidence: float, memory: int) -> None:
        self._levels = [1, *(length for length, feature in LEVELS if feature in features)]
        self._left_out: set[str] = set()
        for (begin, _), (end, feature) in itertools.pairwise([(1, ""), *LEVELS]):
            if feature not in features:
                self._left_out.update(Situation._fields[begin:end])
        self._evidence = evidence
        self._memory = memory
        self._cells: Cells = {}

    def __len__(self) -> int:
        return len(self._cells)

    def chance(self, situation: Situation) -> float:
        """The estimate on the grid, from 0 to 1."""
        return (int(_GRID * math.sqrt(self._estimate(situation))) / _GRID) ** 2

    def _estimate(self, situation: Situation) -> float:
        chance, cells, weight = PRIOR, self._cells, self._evidence
        if self._left_out:
            situation = self._reduced(situation)
        for length in self._levels:
            cell = cells.get(situation[:length])
            if cell is None:
                break  # what is more special has not been seen either
            chance = (cell[1] + weight * chance) / (cell[0] + weight)
        return chance

    def learn(self, situation: Situation, label: float) -> None:
        """A node was watched in this situation, and `label` (0 to 1) is what became of it."""
        cells = self._cells
        if self._left_out:
            situation = self._reduced(situation)
        for length in self._levels:
            part = situation[:length]
            cell = cells.get(part)
            if cell is None:
                cells[part] = [1.0, label]
                continue
            cell[0] += 1.0
            cell[1] += label
            if cell[0] > self._memory:
                cell[0] /= 2
                cell[1] /= 2
        if len(cells) > MAX_CELLS:
            self._forget()

    def _forget(self) -> None:
        self._cells = dict(self._by_use()[: MAX_CELLS // 2])

    def _by_use(self) -> list[tuple[tuple[object, ...], list[float]]]:
        """General situations first, since special ones are of no use without them; then what was seen most."""
        return sorted(self._cells.items(), key=lambda item: (len(item[0]), -item[1][0]))

    def cells(self, room: int) -> list[list[Any]]:
        """[parts of a situation, observations, sum of labels] of the most useful, in about `room` bytes of JSON."""
        found: list[list[Any]] = []
        for part, (observations, total) in self._by_use():
            found.append([list(part), round(observations, 3), round(total, 4)])
            room -= 40 + sum(len(str(one)) + 4 for one in part)
            if room < 0:
                break
        return found

    def parsed(self, cells: object) -> Cells:
        """What `cells` gave, for `restore`.

        Raises:
            ValueError: it is something else.
        """
        restored: Cells = {}
        for cell in cells if isinstance(cells, list) else [None]:
            match cell:
                case [[*part], int() | float() as observations, int() | float() as total] if (
                    len(part) in self._levels
                    and all(one is None or isinstance(one, str | int) for one in part)
                    and 0 <= total <= observations + 0.01 < math.inf
                ):
                    restored[tuple(part)] = [float(observations), float(total)]
                case _:
                    raise ValueError(f"{cell!r:.80} is no cell of a table of this kind")
        return restored

    def restore(self, cells: Cells) -> None:
        """Goes on from these, which `parsed` has made."""
        self._cells = cells
        if len(cells) > MAX_CELLS:
            self._forget()

    def begin_with(self, other: ReuseTable) -> None:
        """Goes on from what another table of the same kind knows."""
        self._cells = {part: list(cell) for part, cell in other._cells.items()}

    def explain(self, situation: Situation) -> list[Evidence]:
        """The levels that the estimate came from, the general ones first."""
        found: list[Evidence] = []
        chance = PRIOR
        situation = self._reduced(situation)
        for length in self._levels:
            cell = self._cells.get(situation[:length])
            if cell is None:
                break
            chance = (cell[1] + self._evidence * chance) / (cell[0] + self._evidence)
            parts = zip(situation._fields[:length], situation[:length], strict=True)
            known = {name: part for name, part in parts if part is not None}
            found.append(Evidence(known, cell[0], cell[1] / cell[0], chance))
        return found

    def _reduced(self, situation: Situation) -> Situation:
        parts = zip(situation._fields, situation, strict=True)
        return Situation._make(None if name in self._left_out else part for name, part in parts)
