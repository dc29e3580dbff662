"""Does everything the cache keeps up to date agree with the tree, by brute force? For tests and for `engine check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving.sglang_plugin.values import value_of

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache


def check_integrity(cache: ForecacheCache) -> None:
    """Ledger, values, victim queues and SGLang's own books against the tree. O(nodes × owners).

    Raises:
        AssertionError: with the node and both figures.
    """
    if not getattr(cache, "ongoing_load_back", None):  # SGLang's check takes a node under a load for a mistake
        cache.sanity_check()
    tree, ledger = cache.tree_core, cache.ledger
    nodes = [node for node in tree._node_arena.values() if node is not tree.root_node]
    owned: dict[Any, set[Any]] = {owner: set() for owner in ledger.owners.values()}
    for node in nodes:
        entry = node.entry
        assert tree._node_arena.get(node.parent.id) is node.parent, f"node {node.id} has a parent outside the tree"
        assert set(entry.owners) <= set(owned), f"node {node.id} is owned by a workflow that has ended"
        for owner, mask in entry.owners.items():
            owned[owner].add(node)
            if node.parent is not tree.root_node:
                above = node.parent.entry.owners.get(owner, 0)
                assert above & mask == mask, f"node {node.id}: {owner.workflow} owns {mask:b}, its parent {above:b}"
        value = value_of(entry, ledger.combine)
        assert entry.value == value, f"node {node.id} has value {entry.value}, its owners give {value}"
        tables = sum(owner.table is not None for owner in entry.owners)
        assert entry.tables == tables, f"node {node.id} counts {entry.tables} tables, has {tables}"
        retired = ledger.is_retired(entry)
        assert bool(entry.retirement) == retired, f"node {node.id}: retirement {entry.retirement}, retired {retired}"
    for owner, its_nodes in owned.items():
        found = set(owner.nodes())
        assert found == its_nodes, f"{owner.workflow}: tips lead to {len(found)} nodes, {len(its_nodes)} are its"
        assert owner.tips.keys() <= its_nodes, f"{owner.workflow} has a tip that it does not own"
    occupied = cache.pools.occupancy()
    on_device = sum(tokens for name, tokens in occupied.items() if name.startswith("device_"))
    expected = cache.full_evictable_size() + cache.full_protected_size()
    assert on_device == expected, f"nodes hold {on_device} device tokens, SGLang counts {expected}"
    now = cache.clock()
    for tier, queue in cache.victims.queues.items():
        if cache.learning is not None:  # what was learned since has changed keys that nobody has looked at
            queue.rebuild()
        in_order = queue.in_order()
        first = queue.first()
        assert (first is None) == (not in_order), f"{tier}: {len(in_order)} candidates, first is {first}"
        if first is not None and first is not in_order[0]:
            found_key, expected = queue.key(first, now), queue.key(in_order[0], now)
            raise AssertionError(
                f"{tier}: next victim is node {first.id} {found_key}, not node {in_order[0].id} {expected}"
            )
