"""The ledger under random calls, splits, drops, ends, forecasts and changes of policy, against its definition."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_tree import Node, Tree

from cache_actor.policies.base import Combine
from serving.sglang_plugin.entries import Owner
from serving.sglang_plugin.uses import Use

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
            assert set(owner.nodes()) == nodes
            assert owner.tips.keys() <= nodes
            assert {node for node in nodes if not any(child in nodes for child in node.children)} <= owner.tips.keys()


LedgerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
