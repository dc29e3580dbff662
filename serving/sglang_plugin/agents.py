"""Agents as bits of a mask: what a node's ledger entry says of them is one integer an owner."""

from __future__ import annotations

MAX_AGENTS = 256
OTHER_AGENTS = "(other)"
_OTHER_BIT = 1 << (MAX_AGENTS - 1)


class AgentBits:
    """A bit for each agent that is referred to, at most `MAX_AGENTS`; those beyond share the last one."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._free = [1 << number for number in reversed(range(MAX_AGENTS - 1))]

    def get(self, agent: str) -> int | None:
        """The agent's bit, None if it has none."""
        return self._bits.get(agent)

    @property
    def all_taken(self) -> bool:
        return not self._free

    def take(self, agent: str) -> int:
        """A free bit for an agent that has none."""
        if not self._free:
            return self._bits.setdefault(OTHER_AGENTS, _OTHER_BIT)
        bit = self._bits[agent] = self._free.pop()
        return bit

    def named(self, mask: int) -> list[str]:
        """The agents of a mask."""
        return [agent for agent, bit in self._bits.items() if bit & mask]

    def keep(self, mask: int) -> None:
        """Frees the bits of all agents that are not in the mask."""
        for agent, bit in list(self._bits.items()):
            if not bit & mask and bit != _OTHER_BIT:
                del self._bits[agent]
                self._free.append(bit)
