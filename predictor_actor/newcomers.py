"""Agents that have hardly been called yet: until then they are taken for the known agent that they are most like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor_actor.agents import Ids
from predictor_actor.features import likeness
from predictor_actor.graph import Floats, GraphView

# From so many calls on an agent speaks for itself.
KNOWN_CALLS = 3
# One that is less like every known agent than this is like none.
LEAST_SIMILARITY = 0.4


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Who stands in for whom in a graph of N agents.

    Attributes:
        stand_in: (N + 1,) for each number the number of the agent it is taken for, its own if it is known.
        spread: (N + 1, N + 1), what a forecast (END last) is multiplied by, so that a known agent shares its chances
            with the newcomers that it stands in for: as much as an agent that has been called n times, in so many calls
            of the two, has earned (n + 1/2) / (calls + 1); None: there are no newcomers.
    """

    stand_in: Ids
    spread: Floats | None

    @classmethod
    def of(cls, view: GraphView) -> Newcomers:
        """Those of a graph."""
        count = len(view.names)
        stand_in = np.arange(count + 1)
        calls = view.counts.sum(axis=0)[1:]
        cold, known = np.flatnonzero(calls < KNOWN_CALLS), np.flatnonzero(calls >= KNOWN_CALLS)
        if not len(cold) or not len(known):
            return cls(stand_in, None)
        alike = likeness(view)[np.ix_(cold, known)]
        nearest = alike.argmax(axis=1)
        close = alike.max(axis=1) >= LEAST_SIMILARITY
        cold, nearest = cold[close], known[nearest[close]]
        if not len(cold):
            return cls(stand_in, None)
        stand_in[cold + 1] = nearest + 1
        share = np.zeros((count + 1, count + 1), np.float32)
        frequency = calls / max(1.0, float(calls.sum()))
        turns = view.chances[1:][cold] * (frequency[nearest] + frequency[cold])
        share[nearest, cold] = (calls[cold] + 0.5) / (turns + 1)
        share[np.arange(count + 1), np.arange(count + 1)] = 1
        return cls(stand_in, (share / share.sum(axis=1, keepdims=True)).astype(np.float32))
