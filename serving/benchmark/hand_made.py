"""A hand-made tree with the ledger, the queues and the learning that `ForecacheCache` puts beside SGLang's."""

from __future__ import annotations

import random
from typing import Any

from cache_actor.policies import VALUE_ONE, make_policy
from cache_actor.policies.base import Key
from cache_actor.policies.reuse import Reuse
from serving.sglang_plugin.entries import Entry, Owner
from serving.sglang_plugin.ledger import Ledger
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.reuse import Learning
from serving.sglang_plugin.uses import Use

AGENTS = 5
AGENT_NAMES = tuple(f"agent-{number}" for number in range(AGENTS))
# Agents of other kinds of workflow that the engine has met: Python keeps ints below 257 for nothing, masks are larger.
OTHER_AGENTS = 40


class _Key:
    """A node's tokens; like SGLang's `RadixKey` it computes its length in Python."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens


class Node:
    """A node of the hand-made tree: what the ledger asks of one."""

    __slots__ = ("entry", "id", "key", "last_access_time", "parent")

    def __init__(self, number: int, parent: Node | None, last_access_time: float) -> None:
        self.id = number
        self.parent = parent
        self.key = _Key(16)
        self.last_access_time = last_access_time
        self.entry = Entry()


def grow(chains: int, depth: int) -> list[list[Node]]:
    """Chains of `depth` nodes under one root, each from its top to its leaf."""
    root = Node(0, None, 0)
    tree: list[list[Node]] = []
    for number in range(chains):
        chain: list[Node] = []
        for level in range(depth):
            chain.append(Node(number * depth + level + 1, chain[-1] if chain else root, number))
        tree.append(chain)
    return tree


class HandMade:
    """Ledger and queues over a hand-made tree, tied to each other as `ForecacheCache` does it.

    Each workflow owns `AGENTS` chains of `depth` nodes, one an agent; the next agent has used its upper half, too.
    `sharers` workflows own the same chains.
    """

    def __init__(self, workflows: int, depth: int, sharers: int = 1, policy: str = "lookahead") -> None:
        self.rng = random.Random(0)
        self.policy = make_policy(policy)
        self.learning = Learning(self.policy, lambda tier: 1 << 20) if isinstance(self.policy, Reuse) else None
        self.now = 0.0
        self.names = [f"workflow-{number:08d}-{number:08x}" for number in range(workflows)]
        self.chains = grow(workflows // sharers * AGENTS, depth)
        self.sharers = sharers
        self.ledger = Ledger(self.policy.combine, self.policy.strict, self.lowered, workflows + 1_000)
        for number in range(OTHER_AGENTS):
            self.ledger.bit(f"other-{number}")
        self.bits = [self.ledger.bit(agent) for agent in AGENT_NAMES]
        self.queues = {
            tier: VictimQueue(self._key, self.policy.changes_at, lambda: self.now, tier) for tier in ("device", "host")
        }

    def _key(self, node: Any, now: float) -> Key:
        if self.learning is not None:
            return self.learning.key(self.policy, "device", self.ledger, node, now)
        return self.policy.key(self.ledger.facts(node), now)

    def lowered(self, nodes: list[Any]) -> None:
        for queue in self.queues.values():
            queue.lowered(nodes)

    def chains_of(self, number: int) -> list[list[Node]]:
        first = number // self.sharers * AGENTS
        return self.chains[first : first + AGENTS]

    def own(self) -> None:
        """Every workflow makes its calls and gets a value table."""
        for number, name in enumerate(self.names):
            self.now += 0.001
            owner = self.ledger.owner(name)
            for agent, chain in enumerate(self.chains_of(number)):
                self.ledger.touch(chain[-1], owner, self.call(owner, agent))
                self.ledger.touch(chain[len(chain) // 2], owner, self.call(owner, (agent + 1) % AGENTS))
            self.ledger.set_table(name, self.table())

    def call(self, owner: Owner, agent: int) -> Use:
        """A call that the workflow makes."""
        owner.calls_as(AGENT_NAMES[agent])
        return Use(self.now, owner.agent, self.bits[agent], owner.calls)

    def add_leaves(self) -> None:
        for chain in self.chains:
            self.queues["device"].add(chain[-1])

    def table(self) -> dict[str, int]:
        return {agent: self.rng.randrange(3 * VALUE_ONE) for agent in AGENT_NAMES}
