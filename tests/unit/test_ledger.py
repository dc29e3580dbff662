"""The ledger over small trees made by hand: who owns what, what is retired and in which order, what it takes."""

from __future__ import annotations

import sys

import pytest
from ledger_tree import Tree, owners, retired

from serving.sglang_plugin.uses import Use


class TestOwners:
    def test_a_call_owns_the_path_to_the_root_and_its_tip_is_the_deepest_node(self) -> None:
        tree = Tree()
        top, middle, leaf = tree.chain(3)
        tree.touch(leaf, "w")
        assert tree.owned("w") == {top, middle, leaf}
        assert tree.ledger.owners["w"].tips.keys() == {leaf}
        assert not tree.root.entry.owners

    def test_a_longer_call_moves_the_tip_down_and_another_branch_adds_one(self) -> None:
        tree = Tree()
        top, leaf = tree.chain(2)
        (branch,) = tree.chain(1, top)
        tree.touch(top, "w")
        tree.touch(leaf, "w")
        assert tree.ledger.owners["w"].tips.keys() == {leaf}
        tree.touch(branch, "w")
        tree.touch(top, "w")
        assert tree.ledger.owners["w"].tips.keys() == {leaf, branch}

    def test_an_owners_nodes_are_given_once_each(self) -> None:
        tree = Tree()
        top, *_ = tree.chain(3)
        for leaf in [tree.chain(2, top)[-1] for _ in range(4)]:
            tree.touch(leaf, "w")
        found = list(tree.ledger.owners["w"].nodes())
        assert len(found) == len(set(found)) == 1 + 4 * 2

    def test_the_agents_of_a_node_are_those_that_used_it(self) -> None:
        tree = Tree()
        top, leaf = tree.chain(2)
        tree.touch(leaf, "w", "coder")
        tree.touch(top, "w", "planner")
        owner = tree.ledger.owners["w"]
        assert tree.ledger.agents.named(top.entry.owners[owner]) == ["coder", "planner"]
        assert tree.ledger.agents.named(leaf.entry.owners[owner]) == ["coder"]

    def test_what_used_a_node_used_the_node_that_is_split_off_above_it(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w", "coder")
        tree.ledger.set_table("w", {"coder": 5})
        upper = tree.split(leaf)
        tree.touch(upper, "v")
        assert owners(upper) == {"w", "v"}
        assert owners(leaf) == {"w"}
        assert upper.entry.value == leaf.entry.value == 5
        assert tree.ledger.owners["w"].tips.keys() == {leaf}

    def test_a_split_says_that_the_lower_node_may_leave_sooner(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.split(leaf)
        assert tree.lowered == [leaf]

    def test_halves_of_a_retired_node_are_retired_together(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        tree.ledger.end("w")
        upper = tree.split(leaf)
        assert upper.entry.retirement == leaf.entry.retirement > 0

    def test_when_a_tip_is_dropped_its_parent_is_one(self) -> None:
        tree = Tree()
        top, leaf = tree.chain(2)
        tree.touch(leaf, "w")
        tree.drop(leaf)
        assert tree.ledger.owners["w"].tips.keys() == {top}
        tree.drop(top)
        assert not tree.ledger.owners["w"].tips
        assert tree.ledger.end("w")

    def test_clearing_keeps_workflows_and_their_tables(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w")
        tree.ledger.set_table("w", {"agent": 4})
        tree.ledger.clear()
        tree.root.children.clear()
        (fresh,) = tree.chain(1)
        tree.touch(fresh, "w")
        assert fresh.entry.value == 4


class TestEnds:
    def test_what_it_alone_used_is_retired_and_what_it_shared_is_not(self) -> None:
        tree = Tree()
        top, leaf = tree.chain(2)
        tree.touch(leaf, "w")
        tree.touch(top, "v")
        assert tree.ledger.end("w")
        assert retired(top, leaf) == [False, True]
        assert owners(top) == {"v"}

    @pytest.mark.parametrize("strict", [False, True])
    def test_a_dormant_anchor_is_retired_only_if_strict(self, strict: bool) -> None:
        tree = Tree(strict=strict)
        (anchor,) = tree.chain(1)
        for workflow in ("w", "v"):
            tree.touch(anchor, workflow)
        tree.ledger.end("w")
        assert retired(anchor) == [False]
        tree.ledger.end("v")
        assert retired(anchor) == [strict]

    def test_a_workflow_that_comes_back_is_not_another_one(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        for _ in range(3):
            tree.touch(leaf, "w")
            assert not leaf.entry.shared
            tree.ledger.end("w")
            assert retired(leaf) == [True]
        tree.touch(leaf, "v")
        assert leaf.entry.shared

    def test_an_unknown_or_ended_workflow_cannot_end(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        assert not tree.ledger.end("w")
        tree.touch(leaf, "w")
        assert tree.ledger.end("w")
        assert not tree.ledger.end("w")
        assert leaf.entry.past == 1

    def test_the_owner_is_told_that_it_is_over(self) -> None:
        tree = Tree()
        owner = tree.ledger.owner("w")
        tree.ledger.end("w")
        assert owner.ended
        assert tree.ledger.owner("w") is not owner

    def test_what_a_late_call_leaves_behind_is_retired_and_what_others_use_is_left_alone(self) -> None:
        tree = Tree()
        top, middle, leaf = tree.chain(3)
        tree.touch(top, "v")
        owner = tree.ledger.owner("w")
        tree.ledger.end("w")
        tree.ledger.touch_ended(leaf, owner, Use(1.0))
        assert retired(top, middle, leaf) == [False, True, True]
        assert owners(top) == {"v"}
        assert top.entry.past == 0

    def test_what_nobody_in_particular_uses_is_never_retired(self) -> None:
        tree = Tree(strict=True)
        top, leaf = tree.chain(2)
        tree.touch(leaf, "w")
        tree.ledger.end("w")
        tree.ledger.touch_unnamed(top, Use(1.0))
        assert retired(top, leaf) == [False, True]
        tree.touch(top, "v")
        tree.ledger.end("v")
        assert retired(top) == [False]

    def test_nodes_retire_in_the_order_of_their_last_use(self) -> None:
        tree = Tree()
        leaves = [tree.node(tree.root) for _ in range(5)]
        for leaf in (leaves[3], leaves[0], leaves[4], leaves[1], leaves[2]):
            tree.touch(leaf, "w")
        tree.ledger.end("w")
        assert [leaf.entry.retirement for leaf in leaves] == [2, 4, 5, 1, 3]

    @pytest.mark.parametrize("salt", range(4))
    def test_nodes_used_at_the_same_moment_retire_in_the_same_order_on_every_rank(self, salt: int) -> None:
        tree = Tree(salt=salt)
        leaves = [tree.node(tree.root) for _ in range(40)]
        for leaf in leaves:
            tree.touch(leaf, "w")
            leaf.last_access_time = 1.0
        tree.ledger.end("w")
        assert [leaf.entry.retirement for leaf in leaves] == list(range(1, 41))
        assert tree.lowered == leaves


class TestMemory:
    def test_an_entry_with_four_owners_takes_at_most_400_bytes(self) -> None:
        """Ten branches of ten nodes, all used by four workflows.

        Counted: for each node its entry and its dictionary of owners; for each workflow its tips. Masks, uses
        and workflow names are shared, so they count as nothing. Where every node is a tip of all four, tips
        come to up to 132 bytes a node instead of 29.
        """
        tree = Tree()
        for branch in range(10):
            leaf = tree.chain(10)[-1]
            for workflow in range(4):
                tree.touch(leaf, f"w{workflow}", f"a{branch % 4}")
        nodes = tree.nodes()
        assert {len(node.entry.owners) for node in nodes} == {4}
        entries = sum(sys.getsizeof(node.entry) + sys.getsizeof(node.entry.owners) for node in nodes)
        tips = sum(sys.getsizeof(owner.tips) for owner in tree.ledger.owners.values())
        assert (entries + tips) / len(nodes) <= 400
