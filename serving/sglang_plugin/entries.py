"""What the access ledger keeps: an entry for each node of a tree, an owner for each active workflow.

A parent's owners contain its children's, because a call uses the whole path from its node to the root; so the nodes of
a workflow are the paths up from its deepest ones (its *tips*), and nothing else need be stored to find them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from serving.sglang_plugin.uses import NEVER, Use

# Below 257, the ints that Python has only once.
MAX_USES, RETURNED = 100, 128
# In `Entry.past`: somebody who gave no name uses it, so that nobody can say that it is over.
UNNAMED = 1 << 40


class LedgerNode(Protocol):
    """A node of a prefix tree."""

    parent: Any
    entry: Entry
    last_access_time: float
    id: int

    @property
    def key(self) -> Any: ...


class Owner:
    """An active workflow as the ledger knows it. Ended, it owns nothing; its object is not used again.

    calls: how many it has made; `agent` the latest of them, `previous` the one before.
    """

    __slots__ = ("agent", "calls", "ended", "previous", "table", "tips", "workflow")

    def __init__(self, workflow: str) -> None:
        self.workflow = workflow
        self.table: dict[int, int] | None = None  # agent bit -> value
        self.tips: dict[LedgerNode, None] = {}  # a set of five takes three times the room
        self.ended = False
        self.calls = 0
        self.agent = self.previous = ""

    def calls_as(self, agent: str) -> None:
        """It makes a call."""
        self.calls += 1
        self.previous, self.agent = self.agent, agent

    def nodes(self) -> Iterator[LedgerNode]:
        """The nodes that it owns, each once, in no order."""
        return (node for node in self._paths() if self in node.entry.owners)

    def _paths(self) -> Iterable[LedgerNode]:
        """The nodes from the tips up, path by path. Those that have as many owners as are named are among them."""
        seen: dict[LedgerNode, None] = {}
        for node in self.tips:
            while node not in seen and (above := node.parent) is not None:
                seen[node] = None
                node = above
        return seen


class Entry:
    """What the ledger keeps of one node.

    owners: active workflow -> its agents that used the node, as a bit mask.
    past: how many workflows that have ended used it, the last of them being `last`.
    value: sum or maximum of its owners' values for their agents.
    standing: how many of its owners have a value table (`tables`), or, below 0, its place in the order of retirement
        (`retirement`); a retired node has no owners.
    use: its last one; `uses`: how many calls have had it in their prompts, at most MAX_USES; RETURNED more if it had
        left the tree before.
    device_slot, host_slot: number of its newest item in the victim queue of that tier.
    walk: number of the last walk over a workflow's paths that came by.
    """

    __slots__ = (
        "device_slot",
        "host_slot",
        "last",
        "owners",
        "past",
        "standing",
        "use",
        "uses",
        "value",
        "walk",
    )

    def __init__(self) -> None:
        self.owners: dict[Owner, int] = {}
        self.past = 0
        self.last: str | None = None
        self.value = 0
        self.standing = 0
        self.use = NEVER
        self.uses = 0
        self.device_slot = 0
        self.host_slot = 0
        self.walk = 0

    @property
    def shared(self) -> bool:
        """Several workflows have used it: an agent's anchor."""
        return self.past + len(self.owners) > 1

    @property
    def tables(self) -> int:
        return max(0, self.standing)

    @property
    def retirement(self) -> int:
        """0 while it is not retired."""
        return max(0, -self.standing)

    def unretire(self) -> None:
        """Somebody uses it again; not retired, it stays as it is."""
        if self.standing < 0:
            self.standing = 0

    def used(self, use: Use, generated: bool) -> None:
        """A call uses it; the same call may say so again. `generated`: what is new of it is output and no prompt."""
        if self.use is not use:
            if (not generated or self.use is not NEVER) and self.uses % RETURNED < MAX_USES:
                self.uses += 1
            self.use = use
