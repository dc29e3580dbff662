"""What had left the tree is computed again, as a new node at the same place."""

from __future__ import annotations

import pytest
from ledger_tree import Node, Tree, retired

from serving.sglang_plugin.entries import MAX_USES, RETURNED
from serving.sglang_plugin.memory import Memory
from serving.sglang_plugin.uses import Use


class TestRecall:
    @staticmethod
    def again(tree: Tree, node: Node, workflow: str) -> Node:
        memory = Memory.of(node.entry)
        assert node.parent is not None
        above = node.parent
        tree.drop(node)
        fresh = tree.node(above)
        tree.touch(fresh, workflow)
        tree.ledger.recall(fresh, memory)
        return fresh

    def test_for_its_own_workflow_it_is_private_as_before(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        fresh = self.again(tree, leaf, "w")
        assert not fresh.entry.shared
        tree.ledger.end("w")
        assert retired(fresh) == [True]

    @pytest.mark.parametrize("ended", [True, False])
    def test_for_another_it_is_shared_whether_the_first_still_lives(self, ended: bool) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        if ended:
            tree.ledger.end("w")
        fresh = self.again(tree, leaf, "v")
        assert fresh.entry.shared
        tree.ledger.end("v")
        assert retired(fresh) == [False], "an anchor is not retired with its last workflow"

    def test_for_a_call_that_outlived_its_workflow_it_is_retired(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        owner = tree.ledger.owners["w"]
        tree.ledger.end("w")
        memory = Memory.of(leaf.entry)
        tree.drop(leaf)
        fresh = tree.node(tree.root)
        tree.ledger.touch_ended(fresh, owner, Use(1.0))
        tree.ledger.recall(fresh, memory)
        assert retired(fresh) == [True]

    def test_what_nobody_named_goes_by_recency_again(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.ledger.touch_unnamed(leaf, Use(1.0))
        fresh = self.again(tree, leaf, "w")
        tree.ledger.end("w")
        assert retired(fresh) == [False]

    def test_its_uses_are_counted_apart_from_what_is_new(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        for _ in range(200):
            tree.touch(leaf, "w")
        assert leaf.entry.uses == MAX_USES
        fresh = self.again(tree, leaf, "w")
        assert fresh.entry.uses == RETURNED + 1
        for _ in range(200):
            tree.touch(fresh, "w")
        assert fresh.entry.uses == RETURNED + MAX_USES
