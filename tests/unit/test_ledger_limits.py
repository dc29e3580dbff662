"""The ledger beyond its limits of agents, owners and workflows."""

from __future__ import annotations

import pytest
from ledger_tree import Tree, owners, retired

from cache_actor.policies.base import Combine
from serving.sglang_plugin import ledger as module
from serving.sglang_plugin.agents import MAX_AGENTS, OTHER_AGENTS
from serving.sglang_plugin.ledger import ENDS_A_SWEEP


class TestLimits:
    def test_agents_beyond_the_limit_share_a_bit(self) -> None:
        tree = Tree()
        agents = [f"a{i}" for i in range(MAX_AGENTS + 50)]
        (leaf,) = tree.chain(1)
        for agent in agents:
            tree.touch(leaf, "w", agent)
        bits = [tree.ledger.bit(agent) for agent in agents]
        assert len(set(bits)) == MAX_AGENTS
        assert len(set(bits[MAX_AGENTS - 1 :])) == 1
        assert max(bits).bit_length() == MAX_AGENTS
        assert tree.ledger.agents.named(bits[-1]) == [OTHER_AGENTS]

    def test_bits_of_agents_that_no_living_workflow_has_are_used_again(self) -> None:
        tree = Tree()
        (anchor, *_), (other,) = tree.chain(2), tree.chain(1)
        tree.touch(other, "lives", "stays")
        stays = tree.ledger.bit("stays")
        for i in range(10 * MAX_AGENTS):
            tree.touch(anchor, f"w{i}", f"agent {i}")
            assert tree.ledger.agents.named(anchor.entry.owners[tree.ledger.owners[f"w{i}"]]) == [f"agent {i}"]
            tree.ledger.end(f"w{i}")
        assert tree.ledger.bit("stays") == stays
        assert tree.ledger.agents.named(other.entry.owners[tree.ledger.owners["lives"]]) == ["stays"]

    def test_bits_of_agents_in_a_forecast_are_kept(self) -> None:
        tree = Tree()
        (leaf,) = tree.chain(1)
        tree.touch(leaf, "w", "now")
        tree.ledger.set_table("w", {"later": 5})
        for i in range(MAX_AGENTS + ENDS_A_SWEEP):
            tree.ledger.owner(f"w{i}")
            tree.ledger.bit(f"agent {i}")
            tree.ledger.end(f"w{i}")
        tree.touch(leaf, "w", "later")
        assert leaf.entry.value == 5

    @pytest.mark.parametrize("combine", Combine)
    def test_agents_that_share_a_bit_are_worth_the_best_of_them(self, combine: Combine) -> None:
        tree = Tree(combine)
        (leaf,) = tree.chain(1)
        for i in range(MAX_AGENTS):
            tree.touch(leaf, "v", f"a{i}")
        tree.touch(leaf, "w", f"a{MAX_AGENTS}")
        tree.ledger.set_table("w", {f"a{MAX_AGENTS + 1}": 9, f"a{MAX_AGENTS + 2}": 4})
        assert leaf.entry.value == 9

    def test_beyond_the_limit_a_node_counts_its_users_without_naming_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_OWNERS", 2)
        tree = Tree()
        top, leaf = tree.chain(2)
        for workflow in ("a", "b"):
            tree.touch(top, workflow)
        tree.touch(leaf, "c")
        assert owners(top) == {"a", "b"}
        assert owners(leaf) == {"c"}
        tree.touch(top, "a", "another agent")
        for workflow in ("a", "b"):
            tree.ledger.end(workflow)
        assert retired(top) == [False]
        tree.ledger.end("c")
        assert retired(top, leaf) == [False, True]

    def test_tips_are_owned_even_below_a_node_at_its_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_OWNERS", 1)
        tree = Tree()
        top, middle, leaf = tree.chain(3)
        tree.touch(middle, "a")
        tree.touch(leaf, "b")
        tree.drop(leaf)
        assert tree.ledger.owners["b"].tips.keys() == set()
        tree.drop(middle)
        assert tree.ledger.owners["a"].tips.keys() == {top}

    def test_beyond_the_limit_the_workflow_without_a_call_for_longest_ends(self) -> None:
        tree = Tree(max_workflows=3)
        leaves = {workflow: tree.node(tree.root) for workflow in "abcd"}
        for workflow in "abca":
            tree.touch(leaves[workflow], workflow)
        tree.touch(leaves["d"], "d")
        assert set(tree.ledger.owners) == {"a", "c", "d"}
        assert retired(*leaves.values()) == [False, True, False, False]
        assert tree.ledger.forgotten_workflows == 1
