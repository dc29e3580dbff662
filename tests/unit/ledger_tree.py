"""Small prefix trees made by hand, with the ledger that is about them."""

from __future__ import annotations

import itertools

from cache_actor.policies.base import Combine
from serving.sglang_plugin.entries import Entry
from serving.sglang_plugin.ledger import Ledger
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
