"""What forecasts give the nodes of their workflows."""

from __future__ import annotations

import itertools

import pytest
from ledger_tree import Tree, retired

from cache_actor.policies.base import Combine
from serving.sglang_plugin.values import value_of


class TestValues:
    @pytest.mark.parametrize(("combine", "value"), [(Combine.SUM, 3 + 4 + 10), (Combine.MAX, 10)])
    def test_a_nodes_value_comes_from_its_owners_agents(self, combine: Combine, value: int) -> None:
        tree = Tree(combine)
        (anchor,) = tree.chain(1)
        tree.touch(anchor, "w", "a")
        tree.ledger.set_table("w", {"a": 3, "b": 4, "never": 1000})
        tree.touch(anchor, "w", "b")
        tree.touch(anchor, "v", "a")
        tree.ledger.set_table("v", {"a": 10})
        assert anchor.entry.value == value
        assert tree.ledger.facts(anchor).known

    @pytest.mark.parametrize("combine", Combine)
    def test_a_value_below_0_counts_as_0(self, combine: Combine) -> None:
        tree = Tree(combine)
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w", "a")
        tree.ledger.set_table("w", {"a": -5})
        assert leaf.entry.value == value_of(leaf.entry, combine) == 0
        tree.touch(leaf, "w", "b")
        tree.ledger.set_table("w", {"a": -5, "b": 2})
        assert leaf.entry.value == value_of(leaf.entry, combine) == 2

    def test_an_empty_table_says_something_and_none_nothing(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        tree.ledger.set_table("w", {})
        assert (leaf.entry.tables, leaf.entry.value) == (1, 0)
        tree.ledger.set_table("w", None)
        assert leaf.entry.tables == 0

    @pytest.mark.parametrize("combine", Combine)
    def test_only_what_may_have_fallen_is_said_to_have(self, combine: Combine) -> None:
        tree = Tree(combine)
        leaves = tree.node(tree.root), tree.node(tree.root)
        for leaf, agent in zip(leaves, "ab", strict=True):
            tree.touch(leaf, "w", agent)
        tree.ledger.set_table("w", {"a": 5, "b": 5})
        assert set(tree.lowered) == set(leaves)  # from a guess to a value
        tree.lowered.clear()
        tree.ledger.set_table("w", {"a": 4, "b": 6})
        assert tree.lowered == [leaves[0]]

    def test_a_table_for_a_workflow_that_is_not_active_is_ignored(self) -> None:
        tree = Tree()
        tree.ledger.set_table("w", {"a": 1})
        assert "w" not in tree.ledger.owners

    @pytest.mark.parametrize("salt", range(3))
    def test_another_policy_finds_the_values_and_the_retired_that_it_asks_for(self, salt: int) -> None:
        tree = Tree(salt=salt)
        anchors = [tree.node(tree.root) for _ in range(5)]
        for anchor, (workflow, value) in itertools.product(anchors, (("w", 2), ("v", 3))):
            tree.touch(anchor, workflow)
            tree.ledger.set_table(workflow, {"agent": value})
        assert [anchor.entry.value for anchor in anchors] == [5] * 5
        tree.ledger.change(Combine.MAX, True, tree.nodes())
        assert [anchor.entry.value for anchor in anchors] == [3] * 5
        tree.ledger.end("w")
        tree.ledger.end("v")
        assert [anchor.entry.retirement for anchor in anchors] == [1, 2, 3, 4, 5]
        tree.ledger.change(Combine.SUM, False, tree.nodes())
        assert retired(*anchors) == [False] * 5
        tree.ledger.change(Combine.SUM, True, tree.nodes())
        assert [anchor.entry.retirement for anchor in anchors] == [6, 7, 8, 9, 10]
