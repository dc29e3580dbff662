"""Markov chains with back-off, counted online in bounded space: from nothing, at once, for all workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor_actor.agents import MAX_AGENTS, Ids
from predictor_actor.base import HORIZON, AgentFacts, Forecasts, Predictor, Prefix
from predictor_actor.contexts import MAX_ORDER, Contexts, Keys, followed, key_of, keys_in, latest_of, packed
from predictor_actor.graph import CallGraph, Floats

# Of the ways in which a workflow may have gone on after k calls, the likeliest are followed further.
BEAM = 4
# A number that no agent has, for what is not known.
UNKNOWN = (1 << 10) - 1


class Markov(Predictor):
    """Who follows the last `order` agents, mixed with who follows the last fewer, by how much has been seen of each.

    An order with t observations of d different followers weighs t / (t + d) against the orders below it (Witten-Bell);
    below order 0 all agents and the end are equally likely. Steps beyond the first follow the BEAM likeliest ways.

    Args:
        order: from 1 to MAX_ORDER.
        memory: how many observations of a context count; see `CallGraph`.
    """

    def __init__(self, order: int = 2, memory: int = 128, max_agents: int = MAX_AGENTS) -> None:
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order is {order}; give from 1 to {MAX_ORDER}")
        self.name = f"markov-{order}"  # type: ignore[misc]
        self.order = order
        self.graph = CallGraph(memory, max_agents)
        self.contexts = Contexts(memory)

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        self.graph.introduce(facts)
        self.contexts.reserve(len(self.graph.agents))

    def observe(self, prefix: Prefix) -> None:
        if not prefix.agents:
            return
        fresh = prefix.agents[-1] not in self.graph.agents
        number = self.graph.observe(prefix)
        if fresh:
            self.contexts.forget(number)
            self.contexts.reserve(len(self.graph.agents))
        self._count(prefix.agents[:-1], prefix.length - 1, number)

    def ended(self, prefix: Prefix) -> None:
        self.graph.ended(prefix)
        self._count(prefix.agents, prefix.length, 0)

    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        contexts = np.array([self._context(prefix.agents) for prefix in prefixes], np.int64).reshape(-1, self.order)
        return Forecasts(self.graph.agents.names, self.steps(contexts), self.name)

    def nbytes(self) -> int:
        """Memory of what has been learned, names apart."""
        return self.graph.nbytes() + self.contexts.nbytes()

    def steps(self, contexts: Ids) -> Floats:
        """`Forecasts.steps` after contexts of shape (B, order): the numbers of each workflow's last agents, the latest
        last, 0 before its start, UNKNOWN or -1 for an agent without a number."""
        if not len(contexts):
            return np.zeros((0, HORIZON, len(self.graph.agents) + 1), np.float32)
        paths, where = np.unique(packed(np.where(contexts < 0, UNKNOWN, contexts)), return_inverse=True)
        return self._chain(paths)[where]

    def _chain(self, paths: Keys) -> Floats:
        rows, size = len(paths), len(self.graph.agents) + 1
        ways, weights = paths[:, None], np.ones((rows, 1), np.float32)
        ended = np.zeros(rows, np.float32)
        found = np.empty((rows, HORIZON, size), np.float32)
        after = self._after_each()
        for k in range(HORIZON):
            # Workflows that are in different places often go on to the same.
            distinct, where = np.unique(ways, return_inverse=True)
            coming = self._next(distinct, after)[where].reshape(rows, -1, size) * weights[:, :, None]
            step = coming.sum(axis=1)
            step[:, 0] += ended
            step /= step.sum(axis=1, keepdims=True)
            ended = step[:, 0]
            found[:, k, :-1], found[:, k, -1] = step[:, 1:], ended
            if k + 1 < HORIZON and size > 1:
                ways, weights = self._follow(ways, coming[:, :, 1:], 1 - ended)
        return found

    def _follow(self, ways: Keys, coming: Floats, alive: Floats) -> tuple[Keys, Floats]:
        """The likeliest ways on, shape (rows, up to BEAM), and their weights, which add up to `alive`."""
        rows, _, agents = coming.shape
        flat = coming.reshape(rows, -1)
        kept = min(BEAM, flat.shape[1])
        places = np.argpartition(-flat, kept - 1, axis=1)[:, :kept]
        weights = np.take_along_axis(flat, places, axis=1)
        weights *= (alive / np.maximum(weights.sum(axis=1), 1e-12))[:, None]
        before = np.take_along_axis(ways, places // agents, axis=1)
        return followed(before, places % agents + 1, self.order), weights

    def _next(self, paths: Keys, after: Floats) -> Floats:
        """P(next) of each packed path, END in column 0; `after` is what `_after_each` says."""
        found: Floats = after[np.minimum(latest_of(paths), len(after) - 1)]
        if self.order < 2:
            return found
        keys = [keys_in(paths, order) for order in range(2, self.order + 1)]
        rows, followers, counts = self.contexts.look_up(np.concatenate(keys))
        kinds = (counts > 0).sum(axis=1, dtype=np.float32)
        seen = np.maximum(counts.sum(axis=1) + kinds, 1)
        below = np.ones(len(keys) * len(paths), np.float32)
        below[rows] = np.where(kinds > 0, kinds / seen, 1)
        # What was never counted goes into a column that nobody reads, so that no place is added to twice.
        size = found.shape[1]
        found = np.concatenate([found, np.zeros((len(found), 1), np.float32)], axis=1)
        places = np.where(counts > 0, followers, size) + (rows % len(paths))[:, None] * (size + 1)
        counts /= seen[:, None]
        ends = np.searchsorted(rows, np.arange(len(keys) + 1) * len(paths))
        for order, factors in enumerate(below.reshape(len(keys), -1)):
            found *= factors[:, None]
            held = slice(ends[order], ends[order + 1])
            found.reshape(-1)[places[held]] += counts[held]
        return found[:, :size]

    def _after_each(self) -> Floats:
        """P(next) by the latest agent alone, shape (N + 2, N + 1): after the start, each agent, and an unknown one."""
        counts = self.graph.counts.astype(np.float32)
        size = len(counts)
        every = _mix(np.full((1, size), 1 / size, np.float32), counts.sum(axis=0, keepdims=True))
        return _mix(np.repeat(every, size + 1, axis=0), np.concatenate([counts, np.zeros((1, size), np.float32)]))

    def _context(self, agents: Sequence[str]) -> list[int]:
        """Numbers of the last `order` agents; 0 before the start."""
        latest = [self.graph.agents.get(name) or UNKNOWN for name in agents[-self.order :]]
        return [0] * (self.order - len(latest)) + latest

    def _count(self, before: Sequence[str], length: int, number: int) -> None:
        context = self._context(before)
        # Of a path whose beginning is not known, only what is known counts.
        for order in range(2, min(self.order, len(before) if length > len(before) else self.order) + 1):
            self.contexts.count(key_of(context[-order:]), number)


def _mix(below: Floats, counts: Floats) -> Floats:
    total = counts.sum(axis=1, keepdims=True)
    kinds = (counts > 0).sum(axis=1, keepdims=True, dtype=np.float32)
    mixed: Floats = (counts + kinds * below) / np.maximum(total + kinds, 1)
    return np.where(total > 0, mixed, below)
