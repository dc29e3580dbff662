"""How many engines should hold an agent's anchor: as many as its calls fill. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict

MAX_AGENTS = 4096


class HotAnchors:
    """Counts agents' new workflows, exponentially forgotten.

    Args:
        half_life_s: after this a workflow counts half.
        workflows_per_copy: so many recent workflows of an agent keep an engine busy enough; more get another copy.
    """

    def __init__(self, half_life_s: float = 30.0, workflows_per_copy: float = 4.0) -> None:
        self._half_life = half_life_s
        self._per_copy = workflows_per_copy
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def came(self, agent: str, now: float) -> None:
        """A workflow of which this is the first agent was placed."""
        self._counts[agent] = self._count(agent, now) + 1, now
        self._counts.move_to_end(agent)
        if len(self._counts) > MAX_AGENTS:
            self._counts.popitem(last=False)

    def copies(self, agent: str, now: float) -> int:
        """How many engines should hold its anchor, at least 1."""
        return max(1, math.ceil(self._count(agent, now) / self._per_copy))

    def _count(self, agent: str, now: float) -> float:
        count, at = self._counts.get(agent, (0.0, now))
        return float(count * 0.5 ** (max(0.0, now - at) / self._half_life))
