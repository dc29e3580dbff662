"""How a cache learns which of its nodes are used again: watched candidates, and what became of them.

At each eviction the victim and a few other candidates are watched: their situation is noted, and how many tokens the
tier has taken in so far. A watch ends with the node's next use, also if the node has left the tree meanwhile (its
ghost carries the watch) and has to be computed again; with the end of the only workflow that used it; or when so much
has come in that the node would be gone anyway. So what is learned from is what is decided on. Nothing here depends on
clocks or on the order of sets: every tensor-parallel rank learns the same.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

from cache_actor.policies import VALUE_ONE, EvictionPolicy
from cache_actor.policies.base import Key
from cache_actor.policies.reuse import Reuse
from cache_actor.policies.reuse_table import Evidence, ReuseTable, Situation
from serving.sglang_plugin.entries import RETURNED, UNNAMED, Entry
from serving.sglang_plugin.ledger import Ledger
from serving.sglang_plugin.order import VictimQueue

Tier = Literal["device", "host"]
TIERS: tuple[Tier, ...] = ("device", "host")

MAX_WATCHES = 4096
# With so many, victims are watched, and no others beside them: it is learned fast enough.
ENOUGH_WATCHES = 512
STATE_VERSION = 1
# Of the state as JSON, which must fit into a message.
MAX_STATE_BYTES = 512 * 1024
# After so many times the tier's residence a watched node counts as never used again: exp(-2) would be its label.
HORIZON = 2.0

# Lower bounds of the classes of a situation's figures.
_STEPS = (0, 1, 2, 3, 4, 6, 9, 14, 22)
_SHARERS = (0, 1, 2, 3, 5, 9)
_USES = (0, 1, 2, 3, 4)
_SHARED_USES = (0, 2, 4, 8, 16, 32)
_VALUES = tuple(int(value * VALUE_ONE) for value in (0, 0.001, 0.3, 0.55, 0.75, 0.95, 1.3, 2.0))


def _classes(bounds: tuple[int, ...]) -> list[int]:
    """The class of each number up to the last bound, which stands for all beyond."""
    return [sum(number >= bound for bound in bounds) - 1 for number in range(bounds[-1] + 1)]


_STEP_CLASS, _SHARER_CLASS = _classes(_STEPS), _classes(_SHARERS)
_USE_CLASS, _SHARED_USE_CLASS = _classes(_USES), _classes(_SHARED_USES)


def situation_of(entry: Entry) -> Situation:
    """The situation of a node."""
    owners, use, uses = entry.owners, entry.use, entry.uses
    if len(owners) == 1 and not entry.past:
        (owner,) = owners
        table = owner.table
        return Situation(
            "private",
            _at(_STEP_CLASS, owner.calls - use.step),
            _at(_USE_CLASS, uses % RETURNED),
            None if table is None else _value_class(table.get(use.bit, 0)),
            owner.agent,
            use.agent,
            owner.previous,
            int(uses >= RETURNED),
        )
    state = "shared" if owners else "unnamed" if entry.past >= UNNAMED else "dormant"
    value = _value_class(entry.value) if entry.tables else None
    return Situation(state, _at(_SHARER_CLASS, len(owners)), _at(_SHARED_USE_CLASS, uses % RETURNED), value)


def _at(classes: list[int], number: int) -> int:
    return classes[number] if number < len(classes) else classes[-1]


def _value_class(value: int) -> int:
    for number, bound in enumerate(_VALUES):
        if value < bound:
            return number - 1
    return len(_VALUES) - 1


class Watch:
    """A node's situation when it could have been evicted, and how many tokens had come in until then."""

    __slots__ = ("node", "open", "since", "situation")

    def __init__(self, situation: Situation, since: int, node: int) -> None:
        self.situation = situation
        self.since = since
        self.node = node
        self.open = True


class TierLearning:
    """What one tier has learned, and the nodes that it watches.

    Args:
        residence: how many tokens come in while a node stays, on the average.
    """

    def __init__(self, policy: Reuse, residence: Callable[[], float]) -> None:
        self.table = ReuseTable(policy.learned_from, policy.evidence, policy.memory)
        self.taken_in = 0
        self.labels = 0
        self._residence = residence
        self._watched: dict[int, Watch] = {}
        self._open: deque[Watch] = deque()

    @property
    def watches(self) -> int:
        """How many have been opened, and may be open still."""
        return len(self._open)

    def is_watched(self, node: Any) -> bool:
        return node.id in self._watched

    def watch(self, node: Any, situation: Situation) -> None:
        """From now on; not while there are too many, of which none is given up before its time."""
        horizon = HORIZON * self._residence()
        while self._open and (not self._open[0].open or self.taken_in - self._open[0].since > horizon):
            first = self._open.popleft()
            if first.open:
                self.unused(first)
        if len(self._open) < MAX_WATCHES:
            watch = self._watched[node.id] = Watch(situation, self.taken_in, node.id)
            self._open.append(watch)

    def used(self, node: int) -> None:
        """A call has come for the node."""
        if (watch := self._watched.get(node)) is not None:
            self.returned(watch)

    def returned(self, watch: Watch) -> None:
        """A call has come for what was watched, in the tree or not."""
        if watch.open:
            self._close(watch, math.exp(-(self.taken_in - watch.since) / self._residence()))

    def unused(self, watch: Watch) -> None:
        self._close(watch, 0.0)

    def over(self, node: int) -> None:
        """The only workflow that used the node has ended."""
        if (watch := self._watched.get(node)) is not None:
            self.unused(watch)

    def left(self, node: int) -> Watch | None:
        """The node leaves the tree: its watch goes on without it."""
        return self._watched.pop(node, None)

    def forget_watches(self) -> None:
        """Nothing can become of what is watched."""
        for watch in self._open:
            watch.open = False
        self._open.clear()
        self._watched.clear()

    def split(self, upper: Any, lower: Any) -> None:
        """Both halves of a node are watched as the whole was."""
        if (watch := self._watched.get(lower.id)) is not None and len(self._open) < MAX_WATCHES:
            half = self._watched[upper.id] = Watch(watch.situation, watch.since, upper.id)
            self._open.append(half)

    def _close(self, watch: Watch, label: float) -> None:
        watch.open = False
        if self._watched.get(watch.node) is watch:
            del self._watched[watch.node]
        self.labels += 1
        self.table.learn(watch.situation, label)


Watches = tuple[tuple[TierLearning, Watch], ...]


class Learning:
    """The reuse that both tiers of a cache have seen.

    Args:
        capacity: what a tier holds, in tokens; asked when it is needed, since the host tier comes late.
    """

    def __init__(self, policy: Reuse, capacity: Callable[[Tier], int]) -> None:
        self._features = sorted(policy.learned_from)
        self._samples = policy.samples
        self._random = random.Random(0)
        self.tiers: dict[str, TierLearning] = {
            tier: TierLearning(policy, lambda tier=tier: policy.residence * capacity(tier))  # type: ignore[misc]
            for tier in TIERS
        }

    def state(self) -> dict[str, Any]:
        """What was learned, for `restore`."""
        room = MAX_STATE_BYTES // len(self.tiers)
        tables = {name: tier.table.cells(room) for name, tier in self.tiers.items()}
        return {"version": STATE_VERSION, "features": self._features, "tiers": tables}

    def restore(self, state: object) -> None:
        """Goes on from what another engine has learned.

        Raises:
            ValueError: the state is of another version, of other features, or none at all; nothing is taken over.
        """
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise ValueError(f"its version is not {STATE_VERSION}")
        if state.get("features") != self._features:
            raise ValueError(f"it was learned from the features {state.get('features')}, not {self._features}")
        tables = state.get("tiers")
        if not isinstance(tables, dict) or set(tables) != set(self.tiers):
            raise ValueError(f"it must have the tiers {', '.join(self.tiers)}")
        parsed = {name: tier.table.parsed(tables[name]) for name, tier in self.tiers.items()}
        for name, tier in self.tiers.items():
            tier.table.restore(parsed[name])

    def begin_with(self, other: Learning, tier: Tier) -> None:
        """Goes on, in both tiers, from what another has learned in this one."""
        for mine in self.tiers.values():
            mine.table.begin_with(other.tiers[tier].table)

    def chance(self, tier: str, entry: Entry) -> float:
        return self.tiers[tier].table.chance(situation_of(entry))

    def key(self, policy: EvictionPolicy, tier: str, ledger: Ledger, node: Any, now: float) -> Key:
        """A node's key under a policy that may ask for its chance."""
        facts = ledger.facts(node)
        if not facts.retired:
            facts.chance = self.chance(tier, node.entry)
        return policy.key(facts, now)

    def explain(self, tier: str, entry: Entry) -> list[Evidence]:
        return self.tiers[tier].table.explain(situation_of(entry))

    def computed(self, tokens: int) -> None:
        """Tokens were computed and put into the cache."""
        for tier in self.tiers.values():
            tier.taken_in += tokens

    def fetched(self, tokens: int) -> None:
        """Tokens came to the host from the storage backend."""
        self.tiers["host"].taken_in += tokens

    def loaded(self, tokens: int) -> None:
        """Tokens came back from the host."""
        self.tiers["device"].taken_in += tokens

    def used(self, nodes: Iterable[Any]) -> None:
        """A call has come for these nodes."""
        for node in nodes:
            for tier in self.tiers.values():
                tier.used(node.id)

    def evicting(self, tier: str, queue: VictimQueue, victim: Any) -> None:
        """The victim and some others of the queue are watched from now on."""
        learning = self.tiers[tier]
        samples = self._samples if learning.watches < ENOUGH_WATCHES else 0
        for node in (victim, *queue.sample(samples, self._random)):
            entry = node.entry
            if not entry.retirement and not learning.is_watched(node):
                learning.watch(node, situation_of(entry))

    def retired(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            for tier in self.tiers.values():
                tier.over(node.id)

    def left(self, node: Any) -> Watches:
        """The node leaves the tree; what `returned` is to be called with if it comes again."""
        watches = [(tier, tier.left(node.id)) for tier in self.tiers.values()]
        return tuple((tier, watch) for tier, watch in watches if watch is not None)

    def returned(self, watches: Watches) -> None:
        """A call came for what had left the tree under these watches."""
        for tier, watch in watches:
            tier.returned(watch)

    def forget_watches(self) -> None:
        """The tree was emptied on demand."""
        for tier in self.tiers.values():
            tier.forget_watches()

    def split(self, upper: Any, lower: Any) -> None:
        for tier in self.tiers.values():
            tier.split(upper, lower)
