"""From traces to what a model is trained on: each part of them seen with the graph that the other parts make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictor_actor.agents import Ids
from predictor_actor.base import HORIZON, AgentFacts, Prefix, WorkflowTrace, prefixes_of
from predictor_actor.features import PathArrays, node_arrays, path_arrays
from predictor_actor.markov import Markov
from predictor_actor.model import Nodes, Paths
from predictor_actor.newcomers import Newcomers

IGNORED = -1


@dataclass(slots=True)
class Fold:
    """Examples of one part of the traces, and the call graph of all the others.

    What has been counted from a workflow itself would tell the model its future, which no call being served can.

    Attributes:
        targets: (B, K) places in the logits of what came; the last is END, IGNORED what is not known.
    """

    nodes: Nodes
    newcomers: Newcomers
    paths: Paths
    targets: Tensor


def make_folds(traces: Sequence[WorkflowTrace], count: int, order: int, memory: int, text_size: int) -> list[Fold]:
    """Splits the traces into `count` parts, every count-th in one, and makes the examples of each.

    Args:
        order, memory: of the Markov chains that give the prior; see `Markov`.
        text_size: length of hidden states; those of another length are left out.
    """
    facts = facts_of(traces)
    folds = []
    for number in range(count):
        markov = Markov(order, memory)
        markov.introduce(facts)
        for place, trace in enumerate(traces):
            if place % count != number:
                markov.learn(trace)
        folds.append(make_fold(traces[number::count], markov, text_size))
    return folds


def make_fold(traces: Sequence[WorkflowTrace], markov: Markov, text_size: int) -> Fold:
    """The examples of traces, seen with what a Markov chain has learned."""
    view = markov.graph.view()
    prefixes = [prefix for trace in traces for prefix in prefixes_of(trace)]
    newcomers = Newcomers.of(view)
    paths = read_paths(prefixes, markov, newcomers, text_size)
    places = {name: place for place, name in enumerate(view.names)}
    targets = [row for trace in traces for row in _targets(trace, places)]
    return Fold(Nodes.of(node_arrays(view)), newcomers, paths, torch.tensor(targets).reshape(-1, HORIZON))


def read_paths(prefixes: Sequence[Prefix], markov: Markov, newcomers: Newcomers, text_size: int) -> Paths:
    """What a model is told of workflows."""
    agents = markov.graph.agents
    numbers = agents.ids([name for prefix in prefixes for name in prefix.agents])
    arrays = path_arrays(prefixes, numbers, unknown=len(agents) + 2)
    prior = markov.steps(_contexts(arrays, markov.order, newcomers.stand_in))
    if newcomers.spread is not None:
        prior = prior @ newcomers.spread
    if not text_size:
        return Paths.of(arrays, torch.from_numpy(prior))
    return Paths.of(arrays, torch.from_numpy(prior), *_texts(prefixes, text_size))


def facts_of(traces: Sequence[WorkflowTrace]) -> dict[str, AgentFacts]:
    """All agents that appear in traces, in the order of their appearance, with what is known of them."""
    facts: dict[str, AgentFacts] = {}
    for trace in traces:
        for call in trace.calls:
            facts.setdefault(call.agent, AgentFacts())
        facts |= trace.agents
    return facts


def _contexts(arrays: PathArrays, order: int, stand_in: Ids) -> Ids:
    latest = arrays.nodes[:, -order:]
    known = latest < len(stand_in)
    return np.where(known, stand_in[np.where(known, latest, 0)], -1)


def _texts(prefixes: Sequence[Prefix], size: int) -> tuple[Tensor, Tensor]:
    texts = np.zeros((len(prefixes), size), np.float32)
    has_text = np.zeros(len(prefixes), bool)
    for row, prefix in enumerate(prefixes):
        if prefix.hidden is not None and len(prefix.hidden) == 2 * size:
            state = np.frombuffer(prefix.hidden, np.float16).astype(np.float32)
            has_text[row] = np.isfinite(state).all()
            texts[row] = state if has_text[row] else 0
    return torch.from_numpy(texts), torch.from_numpy(has_text)


def _targets(trace: WorkflowTrace, places: dict[str, int]) -> list[list[int]]:
    end = len(places)
    coming = [places.get(call.agent, IGNORED) for call in trace.calls]
    after = [end if trace.ending != "open" else IGNORED] * HORIZON
    return [(coming + after)[place : place + HORIZON] for place in range(1, len(coming) + 1)]
