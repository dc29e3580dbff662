"""What the prompts of an agent have in common: its anchor, as token ids, found by watching. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_AGENTS = 64
# Of a longer anchor the beginning is kept, in tokens; a shorter common part is a chat template and no anchor.
MAX_TOKENS = 8192
MIN_TOKENS = 64
# Workflows in whose calls it was found, before it is believed.
WORKFLOWS = 3

Ids = npt.NDArray[np.int32]


@dataclass(slots=True)
class _Found:
    ids: Ids
    workflow: str
    workflows: int = 1
    told: int = 0


class AnchorBook:
    """The longest common prefix of each agent's prompts over different workflows; of the MAX_AGENTS seen lately.

    A prompt that shares less than MIN_TOKENS with it begins anew: the agent has another system prompt now.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, _Found] = OrderedDict()

    def answered(self, agent: str, workflow: str, prompt: Sequence[int]) -> None:
        """A call of an agent was answered, so the engine can hold its prompt."""
        found = self._found.get(agent)
        if found is not None and found.workflow == workflow:
            self._found.move_to_end(agent)  # its own context grows, and says nothing of the anchor
            return
        ids = np.asarray(prompt[:MAX_TOKENS], np.int32)
        if found is None:
            if len(ids) >= MIN_TOKENS:
                self._found[agent] = _Found(ids, workflow)
                if len(self._found) > MAX_AGENTS:
                    self._found.popitem(last=False)
            return
        self._found.move_to_end(agent)
        common = _common(found.ids, ids)
        if common < MIN_TOKENS:
            del self._found[agent]
            self.answered(agent, workflow, prompt)
            return
        found.ids, found.workflow = found.ids[:common], workflow
        found.workflows += 1

    def untold(self, most: int) -> list[tuple[str, bytes]]:
        """Anchors that are believed and were not told in this length yet: agents and ids as little-endian int32."""
        told: list[tuple[str, bytes]] = []
        for agent, found in self._found.items():
            if found.workflows >= WORKFLOWS and found.told != len(found.ids) and len(told) < most:
                found.told = len(found.ids)
                told.append((agent, found.ids.astype("<i4").tobytes()))
        return told

    def tell_all(self) -> None:
        """Whoever was told does not know any more."""
        for found in self._found.values():
            found.told = 0


def _common(first: Ids, second: Ids) -> int:
    shorter = min(len(first), len(second))
    differ = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(differ[0]) if len(differ) else shorter
