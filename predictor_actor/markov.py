"""Markov chains with back-off, counted online in bounded space: from nothing, at once, for all workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor_actor.agents import MAX_AGENTS, Ids
from predictor_actor.base import HORIZON, AgentFacts, Forecasts, Predictor, Prefix
from predictor_actor.contexts import MAX_ORDER, Contexts, keys_of
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
        contexts = np.where(contexts < 0, UNKNOWN, contexts)
        unique, where = np.unique(contexts, axis=0, return_inverse=True)
        return self._chain(unique)[where.reshape(-1)]

    def _chain(self, contexts: Ids) -> Floats:
        rows, size = len(contexts), len(self.graph.agents) + 1
        ways, weights = contexts[:, None, :], np.ones((rows, 1), np.float32)
        ended = np.zeros(rows, np.float32)
        found = np.empty((rows, HORIZON, size), np.float32)
        after = self._after_each()
        for k in range(HORIZON):
            coming = self._next(ways.reshape(-1, self.order), after).reshape(rows, -1, size) * weights[:, :, None]
            step = coming.sum(axis=1)
            step[:, 0] += ended
            step /= step.sum(axis=1, keepdims=True)
            ended = step[:, 0]
            found[:, k, :-1], found[:, k, -1] = step[:, 1:], ended
            if k + 1 < HORIZON and size > 1:
                ways, weights = self._follow(ways, coming[:, :, 1:], 1 - ended)
        return found

    def _follow(self, ways: Ids, coming: Floats, alive: Floats) -> tuple[Ids, Floats]:
        """The likeliest ways on, shape (rows, up to BEAM, order), and their weights, which add up to `alive`."""
        rows, _, agents = coming.shape
        flat = coming.reshape(rows, -1)
        kept = min(BEAM, flat.shape[1])
        places = np.argpartition(-flat, kept - 1, axis=1)[:, :kept]
        weights = np.take_along_axis(flat, places, axis=1)
        weights *= (alive / np.maximum(weights.sum(axis=1), 1e-12))[:, None]
        before = np.take_along_axis(ways, (places // agents)[:, :, None], axis=1)
        return np.concatenate([before[:, :, 1:], (places % agents + 1)[:, :, None]], axis=2), weights

    def _next(self, contexts: Ids, after: Floats) -> Floats:
        """P(next) of each context, END in column 0; `after` is what `_after_each` says."""
        found: Floats = after[np.minimum(contexts[:, -1], len(after) - 1)]
        for order in range(2, self.order + 1):
            rows, followers, counts = self.contexts.look_up(keys_of(contexts[:, -order:]))
            kinds = (counts > 0).sum(axis=1, dtype=np.float32)
            seen = counts.sum(axis=1) + kinds
            below = np.ones(len(found), np.float32)
            below[rows] = np.where(seen > 0, kinds / np.maximum(seen, 1), 1)
            found *= below[:, None]
            counts /= np.maximum(seen, 1)[:, None]
            for place in range(followers.shape[1]):
                found[rows, followers[:, place]] += counts[:, place]
        return found

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
        context = np.array(self._context(before), np.int64)
        # Of a path whose beginning is not known, only what is known counts.
        for order in range(2, min(self.order, len(before) if length > len(before) else self.order) + 1):
            self.contexts.count(keys_of(context[None, -order:])[0], number)


def _mix(below: Floats, counts: Floats) -> Floats:
    total = counts.sum(axis=1, keepdims=True)
    kinds = (counts > 0).sum(axis=1, keepdims=True, dtype=np.float32)
    mixed: Floats = (counts + kinds * below) / np.maximum(total + kinds, 1)
    return np.where(total > 0, mixed, below)
