"""CacheSage and CacheScout (arXiv 2605.27744, 2608.14624): transitions learned online, hops as a proxy of survival."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Literal

from cache_actor.policies.base import (
    VALUE_ONE,
    Combine,
    EvictionPolicy,
    Key,
    NodeFacts,
    after_retired,
    clock_period,
    register,
)

MAX_HOPS = 8


@register
@dataclass(frozen=True, slots=True)
class Survival(EvictionPolicy):
    """Retired nodes first, then by a score of survival p (value / VALUE_ONE) and recency r = exp(-decay_per_s * age).

    additive (CacheSage): weight * p + r. multiplicative (CacheScout): (p + delta) * (r + delta) * tokens.

    The age is taken on a clock that is rounded down to `refresh_s`. A node of which nothing is known has the constant
    score of a node with p = 0, r = `unknown_recency` and `unknown_tokens`, since only `last_access` may order such
    nodes: by default it goes after known nodes without survival that were last used more than 139 s ago (additive),
    and before younger ones and those with survival.

    anchors_only: only shared nodes inherit the survival of their agents; the others have p = 0.
    """

    name = "survival"
    combine = Combine.MAX

    form: Literal["additive", "multiplicative"] = "additive"
    anchors_only: bool = True
    weight: float = 1.0
    decay_per_s: float = 0.005
    delta: float = 0.01
    unknown_recency: float = 0.5
    unknown_tokens: int = 1024
    refresh_s: float = 1.0

    def __post_init__(self) -> None:
        self._check_choice("form", ("additive", "multiplicative"))
        self._check_choice("anchors_only", (False, True))
        self._check_number("weight", 0, 1000)
        self._check_number("decay_per_s", 0, 1000)
        self._check_number("delta", 0, 1)
        self._check_number("unknown_recency", 0, 1)
        self._check_number("unknown_tokens", 1, 1 << 20)
        self._check_number("refresh_s", 0.001, 3600)

    def key(self, node: NodeFacts, now: float) -> Key:
        if not node.known:
            return after_retired(node, self._score(0.0, self.unknown_recency, self.unknown_tokens))
        survival = node.value / VALUE_ONE if node.shared or not self.anchors_only else 0.0
        start, _ = clock_period(now, self.refresh_s)
        age = max(0.0, start - node.touched_at)
        return after_retired(node, self._score(survival, math.exp(-self.decay_per_s * age), node.tokens))

    def changes_at(self, now: float) -> float:
        return clock_period(now, self.refresh_s)[1]

    def _score(self, survival: float, recency: float, tokens: int) -> float:
        if self.form == "additive":
            return self.weight * survival + recency
        return (survival + self.delta) * (recency + self.delta) * tokens


class Transitions:
    """Which agent follows which, counted over the last `window` transitions; self-transitions are not counted.

    scope: "workflow" keeps a current agent per workflow (of at most `max_workflows`; at the limit that of the workflow
        that was observed longest ago is forgotten); "global" keeps one for all, as CacheSage does, which learns noise
        when workflows interleave.

    Raises:
        ValueError: an unknown scope, or a limit below 1.
    """

    def __init__(
        self, scope: Literal["workflow", "global"] = "workflow", window: int = 1024, max_workflows: int = 4096
    ) -> None:
        if scope not in ("workflow", "global"):
            raise ValueError(f"scope is {scope!r}; choose from workflow, global")
        for name, limit in (("window", window), ("max_workflows", max_workflows)):
            if limit < 1:
                raise ValueError(f"{name} is {limit}; give at least 1")
        self._scope = scope
        self._window = window
        self._max_workflows = max_workflows
        self._current: OrderedDict[str, str] = OrderedDict()
        self._recent: deque[tuple[str, str]] = deque()
        self._counts: dict[str, dict[str, int]] = {}

    def observe(self, workflow: str, agent: str) -> None:
        """Notes that a call of `agent` in `workflow` starts."""
        place = self._place(workflow)
        previous = self._current.get(place)
        self._current[place] = agent
        self._current.move_to_end(place)
        if len(self._current) > self._max_workflows:
            self._current.popitem(last=False)
        if previous is not None:
            self.follow(previous, agent)

    def end(self, workflow: str) -> None:
        """Forgets the current agent of a workflow that has ended; what it taught stays. Does nothing if global."""
        if self._scope == "workflow":
            self._current.pop(workflow, None)

    def current(self, workflow: str) -> str | None:
        """The agent observed last: of the workflow, or of all if the scope is global."""
        return self._current.get(self._place(workflow))

    def row(self, agent: str) -> dict[str, float]:
        """P(next | agent), of each agent that has followed it within the window; empty if none has."""
        counts = self._counts.get(agent, {})
        total = sum(counts.values())
        return {follower: count / total for follower, count in counts.items()}

    def edges(self, agent: str, epsilon: float = 0.0, max_edges: int | None = None) -> dict[str, float]:
        """The strongest `max_edges` (None: all) followers with P >= epsilon, strongest first, ties by name."""
        kept = [(follower, p) for follower, p in self.row(agent).items() if p >= epsilon]
        return dict(sorted(kept, key=lambda edge: (-edge[1], edge[0]))[:max_edges])

    def predictability(self) -> float:
        """R = 1 - H(next | current) / H(next), from 0 (the current agent says nothing) to 1 (it says all).

        0 while nothing is learned; 1 if only one agent ever comes next.
        """
        if not self._recent:
            return 0.0
        followers: Counter[str] = Counter()
        conditional = 0.0
        for counts in self._counts.values():
            followers.update(counts)
            conditional += sum(counts.values()) / len(self._recent) * _entropy(counts)
        marginal = _entropy(followers)
        return max(0.0, 1.0 - conditional / marginal) if marginal > 0 else 1.0

    def _place(self, workflow: str) -> str:
        return workflow if self._scope == "workflow" else ""

    def follow(self, previous: str, agent: str) -> None:
        """Counts that a call of `agent` followed one of `previous`, for whoever keeps the current agents himself."""
        if previous == agent:
            return
        self._recent.append((previous, agent))
        row = self._counts.setdefault(previous, {})
        row[agent] = row.get(agent, 0) + 1
        if len(self._recent) > self._window:
            old, follower = self._recent.popleft()
            self._counts[old][follower] -= 1
            if not self._counts[old][follower]:
                del self._counts[old][follower]
            if not self._counts[old]:
                del self._counts[old]


def survival_table(
    transitions: Transitions,
    current_agent: str,
    tau: float = 0.01,
    epsilon: float = 0.0,
    max_edges: int | None = None,
) -> dict[str, int]:
    """The survival of each agent, p = 1 - min(h, 8) / 8, with h hops from the current agent (h = 0); CacheSage.

    A hop follows one of the `max_edges` strongest edges (None: any) that has at least the probability epsilon (it is
    kept) and tau (it is followed). Values in units of 1/VALUE_ONE; agents with p = 0 are absent.
    """
    floor = max(tau, epsilon)
    hops = {current_agent: 0}
    queue = deque([current_agent])
    while queue:
        agent = queue.popleft()
        if hops[agent] == MAX_HOPS - 1:
            continue
        for follower in transitions.edges(agent, floor, max_edges):
            if follower not in hops:
                hops[follower] = hops[agent] + 1
                queue.append(follower)
    return {agent: VALUE_ONE * (MAX_HOPS - count) // MAX_HOPS for agent, count in hops.items()}


def cachescout_table(
    transitions: Transitions, current_agent: str, tau: float = 0.1, epsilon: float = 0.01, max_edges: int = 6
) -> dict[str, int]:
    """`survival_table` with CacheScout's rule of which edges are kept and followed."""
    return survival_table(transitions, current_agent, tau, epsilon, max_edges)


def _entropy(counts: dict[str, int]) -> float:
    """The entropy of a distribution that is given by counts, in bits."""
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())
