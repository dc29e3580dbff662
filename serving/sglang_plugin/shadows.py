"""What the other policies would have done: small caches without KV that see the engine's own calls.

A shadow is a prefix tree of coarse blocks under a policy of its own, with the ledger, victim queue and learning of the
real cache, and as large as the tier whose misses are computed. The engine follows the policy whose shadow computes the
fewest tokens, with hysteresis, so a policy that is wrong for a workload serves it no longer than it takes to see that.
Nothing here depends on clocks or on hash values: every tensor-parallel rank chooses the same.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cache_actor.policies import EvictionPolicy, make_policy
from cache_actor.policies.base import Key
from cache_actor.policies.reuse import Reuse
from serving.sglang_plugin.ledger import Entry, Ledger, Memory
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.reuse import Learning, Tier, Watches
from serving.sglang_plugin.uses import Use

# Beside the policy that is guarded.
ALTERNATIVES = ("lifecycle", "lookahead", "lru")
# A shadow holds so many blocks: coarse enough to be cheap, fine enough to rank policies.
BLOCKS = 256
# Another policy must compute this share less to be followed.
HYSTERESIS = 0.02
# The past counts with exp(-tokens of prompts since / (MEMORY * capacity)), and a choice needs EVIDENCE * capacity.
MEMORY = 8.0
EVIDENCE = 2.0
# Calls under way that are followed to their end; of more, the oldest are taken to have been aborted.
MAX_CALLS = 512

Digest = int


class _Block:
    """A node of a shadow's tree: a block of tokens after its parent's. It is its own key, of `tokens` length."""

    __slots__ = ("children", "digest", "entry", "id", "last_access_time", "locks", "parent", "tokens")

    def __init__(self, number: int, parent: _Block | None, digest: Digest, tokens: int) -> None:
        self.id = number
        self.parent = parent
        self.digest = digest
        self.tokens = tokens
        self.entry = Entry()
        self.children: dict[Digest, _Block] = {}
        self.last_access_time = 0.0
        self.locks = 0

    @property
    def key(self) -> _Block:
        return self

    def __len__(self) -> int:
        return self.tokens


@dataclass(slots=True)
class _Running:
    """A call under way: where its blocks end, which are locked until it is over."""

    end: _Block
    workflow: str | None
    use: Use


class Shadow:
    """The calls of an engine under one policy. Blocks are given as digests of all tokens up to their ends.

    `computed`, `prompts`: tokens, older ones counting for less.

    Args:
        capacity: what the cache holds, in tokens; `block` of them are one block.
        learned: what a policy that learns begins with: that of this tier.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        capacity: int,
        block: int,
        max_workflows: int,
        learned: tuple[Learning, Tier] | None = None,
    ) -> None:
        self.policy = policy
        self.computed = self.prompts = 0.0
        self._capacity = capacity
        self._block = block
        self._used = 0
        self._calls = 0
        self._blocks = 0
        self._now = 0.0
        self.ledger = Ledger(policy.combine, policy.strict, self._lowered, max_workflows, self._retired)
        self._learning = Learning(policy, lambda tier: capacity) if isinstance(policy, Reuse) else None
        if self._learning is not None and learned is not None:
            self._learning.begin_with(*learned)
        self._left: OrderedDict[Digest, tuple[Watches, Memory]] = OrderedDict()  # of blocks that are gone
        self._queue = VictimQueue(self._key, policy.changes_at, lambda: self._now, "device")
        self._root = _Block(0, None, 0, 0)

    def call(self, workflow: str | None, agent: str, prompt: Sequence[Digest], now: float) -> _Running:
        """A call begins: it finds what it can of its prompt and computes the rest."""
        self._calls += 1
        self._now = now
        use = self._use(workflow, agent, now)
        found = self._walk(self._root, prompt)
        total, missing = self._block * len(prompt), self._block * (len(prompt) - len(found))
        faded = math.exp(-total / (MEMORY * self._capacity))
        self.computed = self.computed * faded + missing
        self.prompts = self.prompts * faded + total
        running = _Running(found[-1] if found else self._root, workflow, use)
        self._touch(running, generated=False)
        self._lock(running.end, 1)
        running.end, back = self._grow(running.end, prompt[len(found) :])
        self._touch(running, generated=False)
        for block, memory in back:
            self.ledger.recall(block, memory)
        return running

    def finish(self, running: _Running, output: Sequence[Digest], now: float) -> None:
        """The call is over, and these blocks were generated after its prompt."""
        self._now = now
        known = self._walk(running.end, output)
        if known:
            for block in known:
                block.locks += 1
                self._offer(block)
            running.end = known[-1]
        running.end, _ = self._grow(running.end, output[len(known) :])
        self._touch(running, generated=True)
        self._lock(running.end, -1)

    def set_table(self, workflow: str, table: Mapping[str, int] | None) -> None:
        self.ledger.set_table(workflow, table)
        self._moved(workflow)

    def end(self, workflow: str) -> None:
        self.ledger.end(workflow)

    def _use(self, workflow: str | None, agent: str, now: float) -> Use:
        if workflow is None:
            return Use(now)
        owner = self.ledger.owner(workflow)
        owner.calls_as(agent)
        self._moved(workflow)
        return Use(now, agent, self.ledger.bit(agent), owner.calls)

    def _moved(self, workflow: str) -> None:
        if self._learning is not None and (owner := self.ledger.owners.get(workflow)) is not None:
            self._lowered(list(self.ledger.nodes_of(owner)))

    def _walk(self, at: _Block, digests: Iterable[Digest]) -> list[_Block]:
        found: list[_Block] = []
        for digest in digests:
            child = at.children.get(digest)
            if child is None:
                break
            found.append(child)
            at = child
        return found

    def _grow(self, end: _Block, digests: Sequence[Digest]) -> tuple[_Block, list[tuple[Any, Memory]]]:
        """New blocks after `end`, locked like it: the last of them, and those that had been here before."""
        back: list[tuple[Any, Memory]] = []
        for digest in digests:
            while self._used + self._block > self._capacity and (victim := self._queue.first()) is not None:
                self._evict(victim)
            self._blocks += 1
            block = end.children[digest] = _Block(self._blocks, end, digest, self._block)
            block.locks = 1
            self._used += self._block
            if self._learning is not None:
                self._learning.computed(self._block)
                if digest in self._left:
                    watches, memory = self._left.pop(digest)
                    self._learning.returned(watches)
                    back.append((block, memory))
            end = block
        return end, back

    def _evict(self, victim: Any) -> None:
        if self._learning is not None:
            self._learning.evicting("device", self._queue, victim)
            self._left[victim.digest] = self._learning.left(victim), self.ledger.memory(victim)
            if len(self._left) > 4 * BLOCKS:
                self._left.popitem(last=False)
        self._queue.discard(victim)
        above = victim.parent
        self.ledger.drop(victim)
        del above.children[victim.digest]
        self._used -= victim.tokens
        self._offer(above)

    def _touch(self, running: _Running, generated: bool) -> None:
        end, workflow, use = running.end, running.workflow, running.use
        path: list[Any] = []
        at = end
        while at.parent is not None:
            path.append(at)
            at = at.parent
        for depth, block in enumerate(path):
            block.last_access_time = self._calls - depth * 1e-6
        if self._learning is not None:
            self._learning.used(block for block in path if block.entry.use is not use)
        owner = None if workflow is None else self.ledger.owners.get(workflow)
        if workflow is None:
            self.ledger.touch_unnamed(end, use, generated)
        elif owner is not None:
            self.ledger.touch(end, owner, use, generated)
        self._lowered(path)

    def _lock(self, end: _Block, by: int) -> None:
        at = end
        while at.parent is not None:
            at.locks += by
            self._offer(at)
            at = at.parent

    def _offer(self, block: _Block) -> None:
        """A block can go when it is a leaf and no call is at it."""
        if block.parent is None:
            return
        if block.locks or block.children:
            self._queue.discard(block)
        else:
            self._queue.add(block)

    def _key(self, block: Any, now: float) -> Key:
        if self._learning is not None:
            return self._learning.key(self.policy, "device", self.ledger, block, now)
        return self.policy.key(self.ledger.facts(block), now)

    def _lowered(self, nodes: list[Any]) -> None:
        self._queue.lowered(nodes)

    def _retired(self, nodes: list[Any]) -> None:
        if self._learning is not None:
            self._learning.retired(nodes)


class Shadows:
    """The shadows of a learning policy and of its alternatives, and which of them to follow.

    Args:
        policy: the policy that is followed at first, and again whenever it does as well as any.
        capacity: tokens that a shadow holds.
        learned: what the policy's shadow begins with: that of this tier.
    """

    def __init__(
        self, policy: Reuse, capacity: int, max_workflows: int, learned: tuple[Learning, Tier] | None = None
    ) -> None:
        self._capacity = capacity
        self._block = max(1, capacity // BLOCKS)
        policies = [policy, *(make_policy(name) for name in ALTERNATIVES)]
        self.shadows = {one.name: Shadow(one, capacity, self._block, max_workflows, learned) for one in policies}
        self.followed: EvictionPolicy = policy
        self._running: OrderedDict[str, tuple[Digest, int, list[_Running]]] = OrderedDict()

    def called(self, rid: str, workflow: str | None, agent: str, prompt: Sequence[int], space: Any, now: float) -> None:
        """A call reaches the cache.

        Args:
            prompt: its token ids.
            space: what else must be equal for prefixes to be shared.
        """
        digests = self._digests(hash(space), prompt, 0)
        running = [shadow.call(workflow, agent, digests, now) for shadow in self.shadows.values()]
        self._running[rid] = (digests[-1] if digests else hash(space)), len(digests), running
        if len(self._running) > MAX_CALLS:
            self._finish(*self._running.popitem(last=False)[1], (), now)

    def finished(self, rid: str, tokens: Sequence[int], now: float) -> bool:
        """A call is over, and these are its prompt and output. True if another policy is to be followed from now on."""
        if (running := self._running.pop(rid, None)) is None:
            return False
        self._finish(*running, tokens, now)
        return self._choose()

    def set_table(self, workflow: str, table: Mapping[str, int] | None) -> None:
        for shadow in self.shadows.values():
            shadow.set_table(workflow, table)

    def end(self, workflow: str) -> None:
        for shadow in self.shadows.values():
            shadow.end(workflow)

    def misses(self) -> dict[str, float]:
        """The share of the prompts that each policy has had to compute of late; nothing before there was a prompt."""
        return {name: one.computed / one.prompts for name, one in self.shadows.items() if one.prompts}

    def _finish(self, digest: Digest, blocks: int, running: list[_Running], tokens: Sequence[int], now: float) -> None:
        output = self._digests(digest, tokens, blocks)
        for shadow, one in zip(self.shadows.values(), running, strict=True):
            shadow.finish(one, output, now)

    def _digests(self, digest: Digest, tokens: Sequence[int], first: int) -> list[Digest]:
        """Digests of the whole blocks from `first` on; `digest` is that of what is before them."""
        data = array("q", tokens[first * self._block :]).tobytes()
        size = 8 * self._block
        found: list[Digest] = []
        for begin in range(0, len(data) - size + 1, size):
            digest = hash((digest, data[begin : begin + size]))
            found.append(digest)
        return found

    def _choose(self) -> bool:
        current = self.shadows[self.followed.name]
        if current.prompts < EVIDENCE * self._capacity:
            return False
        # Ties go to the earlier one, and the guarded policy is the first.
        best = min(self.shadows.values(), key=lambda shadow: shadow.computed)
        if best.computed >= (1 - HYSTERESIS) * current.computed:
            return False
        self.followed = best.policy
        return True
