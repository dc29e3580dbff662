"""Access ledger: for each cache node, which active workflows' agents have used it, and what that is worth.

Pure code over any tree whose nodes have `parent` (None at the root), `entry`, `last_access_time`, `key` and `id`;
SGLang's tree is one. Sets of nodes are in another order on every tensor-parallel rank, so nothing that the ledger
decides may depend on it. When a workflow ends it leaves the owners of its nodes and is only counted there (`past`); so
the books stay as small as what is active. What they consist of is in `entries.py`, what values do in `values.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from cache_actor.policies.base import Combine, NodeFacts
from serving.sglang_plugin.agents import AgentBits
from serving.sglang_plugin.entries import UNNAMED, Entry, LedgerNode, Owner
from serving.sglang_plugin.memory import Memory
from serving.sglang_plugin.uses import Use
from serving.sglang_plugin.values import MAX, SUM, add_difference, difference, take_best, value_of, worth

MAX_OWNERS = 4096
MAX_MASKS = 4096
ENDS_A_SWEEP = 64


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
            for node in owner.nodes():
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
                if node in tips:
                    del tips[node]
            elif not mask:
                tips[node] = None
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
        if self.combine is SUM:
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
        if self.combine is SUM:
            self._walks += 1
            self._lowered(add_difference(owner, difference(before, after), self._walks))
        else:
            self._lowered(take_best(owner))
        if known:
            nodes = list(owner.nodes())
            for node in nodes:
                node.entry.standing += known
            self._lowered(nodes)

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
        for node in list(owner.nodes()):
            entry = node.entry
            mask = entry.owners.pop(owner)
            entry.past += 1
            entry.last = workflow
            if owner.table is not None:
                entry.standing -= 1
                if self.combine is SUM:
                    entry.value -= worth(owner.table, mask)
                else:
                    entry.value = value_of(entry, MAX)
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
                del owner.tips[node]
                above = node.parent
                while above.parent is not None and owner not in above.entry.owners:  # it had MAX_OWNERS others
                    above = above.parent
                if above.parent is not None:
                    owner.tips[above] = None
        node.entry = Entry()

    def recall(self, node: LedgerNode, memory: Memory) -> None:
        """A node that had been here before has been computed again, by a call that has touched it."""
        memory.restore(node.entry)
        if not self.is_retired(node.entry):
            node.entry.unretire()

    def change(self, combine: Combine, strict: bool, nodes: Iterable[LedgerNode]) -> None:
        """Another policy asks for another combination; `nodes` are all of the tree."""
        self.combine = combine
        self.strict = strict
        retired: list[LedgerNode] = []
        for node in nodes:
            entry = node.entry
            entry.value = value_of(entry, combine)
            if not self.is_retired(entry):
                entry.unretire()
            elif not entry.retirement:
                retired.append(node)
        self._retire(retired)

    def clear(self) -> None:
        """The tree was emptied; workflows stay active and keep their tables."""
        for owner in self.owners.values():
            owner.tips.clear()

    def is_retired(self, entry: Entry) -> bool:
        """No active workflow owns it, some ended one did, and it is no dormant anchor (or `strict`)."""
        return not entry.owners and (entry.past == 1 or (self.strict and 1 < entry.past < UNNAMED))

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
