"""Access ledger: for each cache node, which active workflows' agents have used it, and what that is worth.

Pure code over any tree whose nodes have `parent` (None at the root), `entry`, `last_access_time`, `key` and `id`;
SGLang's tree is one. Sets of nodes are in another order on every tensor-parallel rank, so nothing that the ledger
decides may depend on it. Three rules keep it small and exact:

* a parent's owners contain its children's, because a call uses the whole path from its node to the root; so the nodes
  of a workflow are the paths up from its deepest ones (its *tips*), and nothing else need be stored to find them;
* values are integers, so a node's value is the exact sum over its owners, however often it was added to;
* when a workflow ends it leaves the owners of its nodes and is only counted there (`past`).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cache_actor.policies.base import Combine, NodeFacts
from serving.sglang_plugin.agents import AgentBits
from serving.sglang_plugin.uses import NEVER, Use

MAX_OWNERS = 4096
MAX_MASKS = 4096
MAX_NAMES = 8
# Below 257, the ints that Python has only once.
MAX_USES, RETURNED = 100, 128
ENDS_A_SWEEP = 64
# In `Entry.past`: somebody who gave no name uses it, so that nobody can say that it is over.
UNNAMED = 1 << 40
# The class looks its members up in Python, each time.
_SUM, _MAX = Combine.SUM, Combine.MAX


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
        self.tips: set[LedgerNode] = set()
        self.ended = False
        self.calls = 0
        self.agent = self.previous = ""

    def calls_as(self, agent: str) -> None:
        """It makes a call."""
        self.calls += 1
        self.previous, self.agent = self.agent, agent


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


@dataclass(frozen=True, slots=True)
class Memory:
    """What is worth knowing of a node that has left the tree, when it is computed again.

    users: workflows that had used it; `names` of some of those that were active, `last` of one that was not.
    """

    users: int
    unnamed: bool
    names: tuple[str, ...]
    last: str | None


class Ledger:
    """All owners and agents, and the operations that keep the entries of a tree right.

    Args:
        combine: how a node's value comes from its owners' (the policy says).
        strict: whether a dormant anchor (shared, no active owner) counts as retired.
        lowered: told of the nodes whose policy keys may have fallen: their values sank, or they retired.
        retired: told of the nodes that retired.
        max_workflows: active workflows; beyond it the one without a call for longest is ended.
    """

    def __init__(
        self,
        combine: Combine,
        strict: bool,
        lowered: Callable[[list[LedgerNode]], None],
        max_workflows: int = 10_000,
        retired: Callable[[list[LedgerNode]], None] = lambda nodes: None,
    ) -> None:
        self.combine = combine
        self.strict = strict
        self.owners: OrderedDict[str, Owner] = OrderedDict()  # the one without a call for longest first
        self.forgotten_workflows = 0
        self._lowered = lowered
        self._retired = retired
        self._max_workflows = max_workflows
        self.agents = AgentBits()
        self._ends = self._next_sweep = 0
        self._masks: dict[int, int] = {}  # equal masks are one object: a node has one for each of its owners
        self._retirements = 0
        self._walks = 0

    def bit(self, agent: str) -> int:
        """The agent's bit. When all are taken those of agents that no workflow refers to are taken back. It may be
        another one later: ask each time.
        """
        bit = self.agents.get(agent)
        if bit is not None:
            return bit
        if self.agents.all_taken and self._ends >= self._next_sweep:
            self._next_sweep = self._ends + ENDS_A_SWEEP  # a sweep costs O(nodes × owners)
            self.agents.keep(self._bits_in_use())
        return self.agents.take(agent)

    def _bits_in_use(self) -> int:
        in_use = 0
        for owner in self.owners.values():
            for bit in owner.table or ():
                in_use |= bit
            for node in self.nodes_of(owner):
                in_use |= node.entry.owners[owner]
        return in_use

    def owner(self, workflow: str) -> Owner:
        """The workflow, which makes a call; active from now on if it was not."""
        owner = self.owners.get(workflow)
        if owner is None:
            if len(self.owners) >= self._max_workflows:
                self.end(next(iter(self.owners)))
                self.forgotten_workflows += 1
            owner = self.owners[workflow] = Owner(workflow)
        self.owners.move_to_end(workflow)
        return owner

    def touch(self, node: LedgerNode, owner: Owner, use: Use, generated: bool = False) -> None:
        """A call of `owner`'s agent uses the path from `node` to the root. O(path).

        Args:
            generated: nodes that nobody has used before hold what the call has generated.
        """
        tips, bit = owner.tips, use.bit
        below_a_tip = False
        while node.parent is not None:
            entry = node.entry
            if entry.use is not use:
                entry.used(use, generated)
            mask = entry.owners.get(owner, 0)
            if not mask & bit:
                if mask or len(entry.owners) < MAX_OWNERS:
                    self._own(node, entry, owner, mask, bit)
                else:
                    entry.past += 1  # beyond the limit a node counts its users without naming them
                    node = node.parent
                    continue
            if below_a_tip:
                tips.discard(node)
            elif not mask:
                tips.add(node)
            below_a_tip = True
            node = node.parent

    def touch_ended(self, node: LedgerNode, owner: Owner, use: Use) -> None:
        """A call that outlived its workflow leaves something behind: it is retired from the start."""
        left: list[LedgerNode] = []
        while node.parent is not None and not node.entry.owners and not node.entry.past:
            node.entry.used(use, generated=True)
            node.entry.past = 1
            node.entry.last = owner.workflow
            if self.is_retired(node.entry):
                left.append(node)
            node = node.parent
        self._retire(left)

    def touch_unnamed(self, node: LedgerNode, use: Use, generated: bool = False) -> None:
        """A call of nobody in particular uses the path from `node` to the root: it goes by recency, for good."""
        while node.parent is not None:
            node.entry.used(use, generated)
            node.entry.past |= UNNAMED
            node.entry.unretire()
            node = node.parent

    def _own(self, node: LedgerNode, entry: Entry, owner: Owner, mask: int, bit: int) -> None:
        mask_now = mask | bit
        if len(self._masks) > MAX_MASKS:
            self._masks.clear()
        entry.owners[owner] = self._masks.setdefault(mask_now, mask_now)
        if entry.standing < 0:
            entry.standing = 0
        if entry.past == 1 and entry.last == owner.workflow:  # the same workflow, come back
            entry.past = 0
        table = owner.table
        if table is None:
            return
        value = table.get(bit, 0)
        if self.combine is _SUM:
            entry.value += value
        elif value > entry.value:
            entry.value = value
        if not mask:
            entry.standing += 1
            if entry.standing == 1:  # until now its value was a guess, which may have been the higher one
                self._lowered([node])

    def set_table(self, workflow: str, table: Mapping[str, int] | None) -> None:
        """New values for a workflow's agents; None takes them back. Touches the workflow's nodes alone.

        A value below 0 counts as 0. Agents that share a bit are worth the best of them.
        """
        owner = self.owners.get(workflow)
        if owner is None:
            return
        before = owner.table
        after = None if table is None else self._by_bit(table)
        owner.table = after
        known = (after is not None) - (before is not None)
        if self.combine is _SUM:
            self._lowered(self._add_difference(owner, _difference(before, after)))
            if known:
                nodes = list(self.nodes_of(owner))
                for node in nodes:
                    node.entry.standing += known
                self._lowered(nodes)
        else:
            self._lowered(self._take_best(owner, known))

    def _add_difference(self, owner: Owner, changes: dict[int, int]) -> list[LedgerNode]:
        """Adds what a table has changed to the owner's nodes; those whose keys may have fallen."""
        fallen: list[LedgerNode] = []
        deltas = dict(changes)  # by mask; that of one agent is its bit
        old = step = new = 0
        self._walks += 1
        walk = self._walks
        for node in owner.tips:  # `_paths` without its set: this is done for each forecast
            entry = node.entry
            while entry.walk != walk and (above := node.parent) is not None:
                entry.walk = walk
                try:
                    delta = deltas[entry.owners[owner]]
                except KeyError:
                    mask = entry.owners.get(owner, 0)  # 0: it had MAX_OWNERS others, and counts nothing of this one
                    delta = deltas[mask] = worth(changes, mask)
                if delta:
                    value = entry.value
                    if value != old or delta != step:
                        old, step, new = value, delta, value + delta
                    entry.value = new  # neighbours that are worth the same share the object
                    if delta < 0:
                        fallen.append(node)
                node = above
                entry = node.entry
        return fallen

    def _take_best(self, owner: Owner, known: int) -> list[LedgerNode]:
        """Looks anew for the best value of each of the owner's nodes; those whose keys may have fallen."""
        fallen: list[LedgerNode] = []
        for node in self.nodes_of(owner):
            entry = node.entry
            entry.standing += known
            value = self.value_of(entry)
            if value < entry.value or known:
                fallen.append(node)
            entry.value = value
        return fallen

    def _by_bit(self, table: Mapping[str, int]) -> dict[int, int]:
        values: dict[int, int] = {}
        for agent, value in table.items():
            if value > 0:
                bit = self.agents.get(agent) or self.agents.take(agent)  # no sweep: the table is not the owner's yet
                if value > values.get(bit, 0):
                    values[bit] = value
        return values

    def end(self, workflow: str) -> bool:
        """The workflow is over: it owns nothing any more. False for one that is not active."""
        owner = self.owners.pop(workflow, None)
        if owner is None:
            return False
        self._ends += 1
        retired: list[LedgerNode] = []
        fallen: list[LedgerNode] = []
        for node in list(self.nodes_of(owner)):
            entry = node.entry
            mask = entry.owners.pop(owner)
            entry.past += 1
            entry.last = workflow
            if owner.table is not None:
                entry.standing -= 1
                if self.combine is _SUM:
                    entry.value -= worth(owner.table, mask)
                else:
                    entry.value = self.value_of(entry)
            if self.is_retired(entry):
                retired.append(node)
            else:
                fallen.append(node)
        self._lowered(fallen)
        owner.tips.clear()
        owner.table = None
        owner.ended = True
        self._retire(retired)
        return True

    def _retire(self, nodes: list[LedgerNode]) -> None:
        in_order = sorted(nodes, key=lambda one: (one.last_access_time, one.id))
        for node in in_order:
            self._retirements += 1
            node.entry.standing = -self._retirements
        self._lowered(in_order)
        self._retired(in_order)

    def split(self, upper: LedgerNode, lower: LedgerNode) -> None:
        """`lower` was split, and `upper` is the new node above it: what used the one used the other."""
        source, target = lower.entry, upper.entry
        target.owners = dict(source.owners)
        target.past = source.past
        target.last = source.last
        target.value = source.value
        target.standing = source.standing
        target.use = source.use
        target.uses = source.uses
        self._lowered([lower])  # it has fewer tokens now

    def drop(self, node: LedgerNode) -> None:
        """`node`, a leaf, leaves the tree."""
        for owner in node.entry.owners:
            if node in owner.tips:
                owner.tips.discard(node)
                above = node.parent
                while above.parent is not None and owner not in above.entry.owners:  # it had MAX_OWNERS others
                    above = above.parent
                if above.parent is not None:
                    owner.tips.add(above)
        node.entry = Entry()

    def memory(self, node: LedgerNode) -> Memory:
        """What `recall` wants of a node that is about to leave."""
        entry = node.entry
        names = tuple(owner.workflow for owner in itertools.islice(entry.owners, MAX_NAMES))
        ended = entry.past & (UNNAMED - 1)
        return Memory(ended + len(entry.owners), entry.past >= UNNAMED, names, entry.last)

    def recall(self, node: LedgerNode, memory: Memory) -> None:
        """A node that had been here before has been computed again, by a call that has touched it.

        Its uses are counted anew, and apart from those of nodes that are here for the first time.
        """
        entry = node.entry
        if entry.uses < RETURNED:
            entry.uses += RETURNED
        known = {*memory.names, memory.last}
        others = memory.users - sum(owner.workflow in known for owner in entry.owners)
        if entry.past == 1 and entry.last in known:  # it came back for a call that outlived its workflow
            others -= 1
        if others > 0:
            entry.past += others
            entry.last = memory.last or next(iter(memory.names), None)
        if memory.unnamed:
            entry.past |= UNNAMED
        if not self.is_retired(entry):
            entry.unretire()

    def change(self, combine: Combine, strict: bool, nodes: Iterable[LedgerNode]) -> None:
        """Another policy asks for another combination; `nodes` are all of the tree."""
        self.combine = combine
        self.strict = strict
        retired: list[LedgerNode] = []
        for node in nodes:
            entry = node.entry
            entry.value = self.value_of(entry)
            if not self.is_retired(entry):
                entry.unretire()
            elif not entry.retirement:
                retired.append(node)
        self._retire(retired)

    def clear(self) -> None:
        """The tree was emptied; workflows stay active and keep their tables."""
        for owner in self.owners.values():
            owner.tips.clear()

    def nodes_of(self, owner: Owner) -> Iterator[LedgerNode]:
        """The nodes that `owner` owns, each once, in no order."""
        return (node for node in self._paths(owner) if owner in node.entry.owners)

    def _paths(self, owner: Owner) -> Iterable[LedgerNode]:
        """The nodes from the owner's tips up, path by path. Those with MAX_OWNERS others are among them."""
        seen: dict[LedgerNode, None] = {}
        for node in owner.tips:
            while node not in seen and (above := node.parent) is not None:
                seen[node] = None
                node = above
        return seen

    def is_retired(self, entry: Entry) -> bool:
        """No active workflow owns it, some ended one did, and it is no dormant anchor (or `strict`)."""
        return not entry.owners and (entry.past == 1 or (self.strict and 1 < entry.past < UNNAMED))

    def value_of(self, entry: Entry) -> int:
        """The value of a node by its definition."""
        values = [worth(owner.table, mask, self.combine) for owner, mask in entry.owners.items()]
        if self.combine is _SUM:
            return sum(values)
        return max(values, default=0)

    def facts(self, node: LedgerNode) -> NodeFacts:
        """What a policy may know of the node."""
        entry = node.entry
        owners, past, standing = entry.owners, entry.past, entry.standing
        # By position and without calls where none is needed: this is most of the price of a victim.
        return NodeFacts(
            not owners and self.is_retired(entry),
            -standing if standing < 0 else 0,
            past + len(owners) > 1,
            standing > 0,
            entry.value,
            len(node.key),
            float(node.last_access_time),
            entry.use.at,
        )


def worth(table: Mapping[int, int] | None, mask: int, combine: Combine = _SUM) -> int:
    """What one owner's table gives a node that the agents in `mask` have used."""
    if not table:
        return 0
    if combine is _MAX:
        return max([value for bit, value in table.items() if bit & mask], default=0)
    total = 0
    for bit, value in table.items():
        if bit & mask:
            total += value
    return total


def _difference(before: Mapping[int, int] | None, after: Mapping[int, int] | None) -> dict[int, int]:
    """By how much each agent's value differs, for those whose value does."""
    changes = dict(after or ())
    for bit, value in (before or {}).items():
        changes[bit] = changes.get(bit, 0) - value
    return {bit: change for bit, change in changes.items() if change}
