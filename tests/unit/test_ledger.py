"""The ledger over small trees made by hand: who owns what, what it is worth, what is retired, and in which order."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_actor.policies.base import Combine
from serving.sglang_plugin import ledger as module
from serving.sglang_plugin.agents import MAX_AGENTS, OTHER_AGENTS
from serving.sglang_plugin.ledger import ENDS_A_SWEEP, MAX_USES, RETURNED, Entry, Ledger, Owner
from serving.sglang_plugin.uses import Use


class Node:
    """A node of the smallest tree that a ledger takes; `salt` decides how sets of nodes iterate."""

    def __init__(self, number: int, parent: Node | None, tokens: int = 1, salt: int = 0) -> None:
        self.id = number
        self.parent = parent
        self.children: list[Node] = []
        self.entry = Entry()
        self.last_access_time = 0.0
        self.key = [0] * tokens
        self.salt = salt
        if parent is not None:
            parent.children.append(self)

    def __hash__(self) -> int:
        return hash((self.salt, self.id))

    def __repr__(self) -> str:
        return f"<{self.id}>"


class Tree:
    """A ledger and the tree that it is about."""

    def __init__(self, combine: Combine = Combine.SUM, strict: bool = False, salt: int = 0, **limits: int) -> None:
        self.lowered: list[Node] = []
        self.ledger = Ledger(combine, strict, self.lowered.extend, **limits)  # type: ignore[arg-type]
        self.salt = salt
        self.numbers = itertools.count()
        self.root = self.node(None)
        self.now = 0.0

    def node(self, parent: Node | None, tokens: int = 1) -> Node:
        return Node(next(self.numbers), parent, tokens, self.salt)

    def chain(self, length: int, top: Node | None = None) -> list[Node]:
        nodes: list[Node] = []
        for _ in range(length):
            nodes.append(self.node(nodes[-1] if nodes else top or self.root))
        return nodes

    def touch(self, node: Node, workflow: str, agent: str = "agent") -> None:
        """As a call does: recency first, parents a little older than their children, then the ledger."""
        self.now += 1
        on_path: Node | None = node
        for age in itertools.count():
            if on_path is None:
                break
            on_path.last_access_time = self.now - age * 1e-5
            on_path = on_path.parent
        self.ledger.touch(node, self.ledger.owner(workflow), Use(self.now, agent, self.ledger.bit(agent)))

    def split(self, lower: Node) -> Node:
        assert lower.parent is not None
        upper = self.node(None)
        upper.parent = lower.parent
        upper.parent.children = [upper if child is lower else child for child in upper.parent.children]
        upper.children, lower.parent = [lower], upper
        self.ledger.split(upper, lower)
        return upper

    def drop(self, leaf: Node) -> None:
        assert leaf.parent is not None
        leaf.parent.children.remove(leaf)
        self.ledger.drop(leaf)

    def nodes(self) -> list[Node]:
        found: list[Node] = []
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            found.append(node)
            stack += node.children
        return found

    def owned(self, workflow: str) -> set[Node]:
        return {node for node in self.nodes() if workflow in owners(node)}


def owners(node: Node) -> set[str]:
    return {owner.workflow for owner in node.entry.owners}


def retired(*nodes: Node) -> list[bool]:
    return [node.entry.retirement > 0 for node in nodes]


class TestOwners:
    def test_a_call_owns_the_path_to_the_root_and_its_tip_is_the_deepest_node(self) -> None:
        tree = Tree()
        top, middle, leaf = tree.chain(3)
        tree.touch(leaf, "w")
        assert tree.owned("w") == {top, middle, leaf}
        assert tree.ledger.owners["w"].tips == {leaf}
        assert not tree.root.entry.owners

    def test_a_longer_call_moves_the_tip_down_and_another_branch_adds_one(self) -> None:
        tree = Tree()
        top, leaf = tree.chain(2)
        (branch,) = tree.chain(1, top)
        tree.touch(top, "w")
        tree.touch(leaf, "w")
        assert tree.ledger.owners["w"].tips == {leaf}
        tree.touch(branch, "w")
        tree.touch(top, "w")
        assert tree.ledger.owners["w"].tips == {leaf, branch}

    def test_nodes_of_gives_each_node_once(self) -> None:
        tree = Tree()
        top, *_ = tree.chain(3)
        for leaf in [tree.chain(2, top)[-1] for _ in range(4)]:
            tree.touch(leaf, "w")
        found = list(tree.ledger.nodes_of(tree.ledger.owners["w"]))
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
        assert tree.ledger.owners["w"].tips == {leaf}

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
        assert tree.ledger.owners["w"].tips == {top}
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
        assert leaf.entry.value == tree.ledger.value_of(leaf.entry) == 0
        tree.touch(leaf, "w", "b")
        tree.ledger.set_table("w", {"a": -5, "b": 2})
        assert leaf.entry.value == tree.ledger.value_of(leaf.entry) == 2

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
        assert tree.ledger.owners["b"].tips == set()
        tree.drop(middle)
        assert tree.ledger.owners["a"].tips == {top}

    def test_beyond_the_limit_the_workflow_without_a_call_for_longest_ends(self) -> None:
        tree = Tree(max_workflows=3)
        leaves = {workflow: tree.node(tree.root) for workflow in "abcd"}
        for workflow in "abca":
            tree.touch(leaves[workflow], workflow)
        tree.touch(leaves["d"], "d")
        assert set(tree.ledger.owners) == {"a", "c", "d"}
        assert retired(*leaves.values()) == [False, True, False, False]
        assert tree.ledger.forgotten_workflows == 1


class TestRecall:
    """What had left the tree is computed again, as a new node at the same place."""

    @staticmethod
    def again(tree: Tree, node: Node, workflow: str) -> Node:
        memory = tree.ledger.memory(node)
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
        memory = tree.ledger.memory(leaf)
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


class TestMemory:
    def test_an_entry_with_four_owners_takes_at_most_400_bytes(self) -> None:
        """Ten branches of ten nodes, all used by four workflows.

        Counted: for each node its entry and its dictionary of owners; for each workflow its set of tips. Masks, uses
        and workflow names are shared, so they count as nothing. Where every node is a tip of all four, sets of tips
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


WORKFLOWS = st.sampled_from(["w", "v", "u"])
AGENTS = st.sampled_from(["a", "b", "c"])
PLACES = st.integers(0, 1000)


class LedgerMachine(RuleBasedStateMachine):
    """The ledger against its definition: for each node the set of its users, and everything computed from it."""

    @initialize(combine=st.sampled_from(Combine), strict=st.booleans())
    def start(self, combine: Combine, strict: bool) -> None:
        self.tree = Tree(combine, strict)
        self.users: dict[Node, dict[str, set[str]]] = {}
        self.ended: dict[Node, set[str | None]] = {}
        self.tables: dict[str, dict[str, int]] = {}
        self.late: list[Owner] = []

    def pick(self, place: int) -> Node | None:
        nodes = sorted(self.users, key=lambda node: node.id)
        return nodes[place % len(nodes)] if nodes else None

    def path(self, node: Node) -> list[Node]:
        found: list[Node] = []
        at: Node | None = node
        while at is not None and at.parent is not None:
            found.append(at)
            at = at.parent
        return found

    @rule(place=PLACES, workflow=WORKFLOWS, agent=AGENTS)
    def grow(self, place: int, workflow: str, agent: str) -> None:
        if len(self.users) < 12:
            node = self.tree.node(self.pick(place) if place % 4 else self.tree.root) if self.users else None
            node = node or self.tree.node(self.tree.root)
            self.users[node], self.ended[node] = {}, set()
            self.use(node, workflow, agent)

    @rule(place=PLACES, workflow=WORKFLOWS, agent=AGENTS)
    def touch(self, place: int, workflow: str, agent: str) -> None:
        if (node := self.pick(place)) is not None:
            self.use(node, workflow, agent)

    def use(self, node: Node, workflow: str, agent: str) -> None:
        self.tree.touch(node, workflow, agent)
        for at in self.path(node):
            self.users[at].setdefault(workflow, set()).add(agent)
            self.ended[at].discard(workflow)

    @rule(place=PLACES)
    def touch_unnamed(self, place: int) -> None:
        if (node := self.pick(place)) is not None:
            self.tree.ledger.touch_unnamed(node, Use(self.tree.now))
            for at in self.path(node):
                self.ended[at].add(None)

    @rule(place=PLACES)
    def touch_late(self, place: int) -> None:
        node = self.pick(place)
        if node is None or not self.late:
            return
        owner = self.late[place % len(self.late)]
        fresh = self.tree.node(node)
        self.users[fresh], self.ended[fresh] = {}, set()
        self.tree.ledger.touch_ended(fresh, owner, Use(self.tree.now))
        for at in itertools.takewhile(lambda one: not self.users[one] and not self.ended[one], self.path(fresh)):
            self.ended[at].add(owner.workflow)

    @rule(workflow=WORKFLOWS)
    def end(self, workflow: str) -> None:
        owner = self.tree.ledger.owners.get(workflow)
        assert self.tree.ledger.end(workflow) == (owner is not None)
        if owner is not None:
            self.late.append(owner)
        self.tables.pop(workflow, None)
        for node, users in self.users.items():
            if users.pop(workflow, None) is not None:
                self.ended[node].add(workflow)

    @rule(workflow=WORKFLOWS, table=st.none() | st.dictionaries(AGENTS, st.integers(-2, 9)))
    def forecast(self, workflow: str, table: dict[str, int] | None) -> None:
        self.tree.ledger.set_table(workflow, table)
        self.tables.pop(workflow, None)
        if table is not None and workflow in self.tree.ledger.owners:
            self.tables[workflow] = table

    @rule(place=PLACES)
    def split(self, place: int) -> None:
        if (node := self.pick(place)) is not None and len(self.users) < 12:
            upper = self.tree.split(node)
            self.users[upper] = {workflow: set(agents) for workflow, agents in self.users[node].items()}
            self.ended[upper] = set(self.ended[node])

    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        if (node := self.pick(place)) is not None and not node.children:
            self.tree.drop(node)
            del self.users[node], self.ended[node]

    @rule(combine=st.sampled_from(Combine), strict=st.booleans())
    def change(self, combine: Combine, strict: bool) -> None:
        self.tree.ledger.change(combine, strict, self.tree.nodes())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tree"):
            return
        ledger = self.tree.ledger
        for node, users in self.users.items():
            entry = node.entry
            assert {owner.workflow: set(ledger.agents.named(mask)) for owner, mask in entry.owners.items()} == users
            worths = [
                [max(0, self.tables.get(workflow, {}).get(agent, 0)) for agent in agents]
                for workflow, agents in users.items()
            ]
            flat = list(itertools.chain.from_iterable(worths))
            assert entry.value == (sum(flat) if ledger.combine is Combine.SUM else max(flat, default=0))
            assert entry.tables == sum(workflow in self.tables for workflow in users)
            ended = self.ended[node]
            is_retired = not users and None not in ended and (len(ended) == 1 or (ledger.strict and len(ended) > 1))
            assert ledger.is_retired(entry) == (entry.retirement > 0) == is_retired
            assert entry.shared == (None in ended or len(ended) + len(users) > 1)
        for workflow, owner in ledger.owners.items():
            nodes: set[Any] = self.tree.owned(workflow)
            assert set(ledger.nodes_of(owner)) == nodes
            assert owner.tips <= nodes
            assert {node for node in nodes if not any(child in nodes for child in node.children)} <= owner.tips


LedgerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
