"""What forecasts give the nodes of a workflow: its value table, from agents to integers, told to the entries.

Values are integers, so a node's value is the exact sum over its owners, however often it was added to.
"""

from __future__ import annotations

from collections.abc import Mapping

from cache_actor.policies.base import Combine
from serving.sglang_plugin.entries import Entry, LedgerNode, Owner

# The class looks its members up in Python, each time.
SUM, MAX = Combine.SUM, Combine.MAX


def worth(table: Mapping[int, int] | None, mask: int, combine: Combine = SUM) -> int:
    """What one owner's table gives a node that the agents in `mask` have used."""
    if not table:
        return 0
    if combine is MAX:
        return max([value for bit, value in table.items() if bit & mask], default=0)
    total = 0
    for bit, value in table.items():
        if bit & mask:
            total += value
    return total


def value_of(entry: Entry, combine: Combine) -> int:
    """The value of a node by its definition."""
    values = [worth(owner.table, mask, combine) for owner, mask in entry.owners.items()]
    if combine is SUM:
        return sum(values)
    return max(values, default=0)


def difference(before: Mapping[int, int] | None, after: Mapping[int, int] | None) -> dict[int, int]:
    """By how much each agent's value differs, for those whose value does."""
    changes = dict(after or ())
    for bit, value in (before or {}).items():
        changes[bit] = changes.get(bit, 0) - value
    return {bit: change for bit, change in changes.items() if change}


def add_difference(owner: Owner, changes: Mapping[int, int], walk: int) -> list[LedgerNode]:
    """Adds what a table has changed to the sums of the owner's nodes; those whose values have fallen.

    Args:
        changes: by the agents' bits.
        walk: a number that no walk had before.
    """
    fallen: list[LedgerNode] = []
    deltas = dict(changes)  # by mask; that of one agent is its bit
    last = delta = old = step = new = 0
    for node in owner.tips:  # `Owner.nodes` without its set: this is done for each forecast
        entry = node.entry
        while entry.walk != walk and (above := node.parent) is not None:
            entry.walk = walk
            mask = entry.owners.get(owner, 0)  # 0: beyond MAX_OWNERS, not named, and nothing of it counts
            if mask != last:  # neighbours have mostly been used by the same agents
                last, known = mask, deltas.get(mask)
                delta = deltas[mask] = worth(changes, mask) if known is None else known
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


def take_best(owner: Owner) -> list[LedgerNode]:
    """Looks anew for the best value of each of the owner's nodes; those whose values have fallen."""
    fallen: list[LedgerNode] = []
    for node in owner.nodes():
        value = value_of(node.entry, MAX)
        if value < node.entry.value:
            fallen.append(node)
        node.entry.value = value
    return fallen
