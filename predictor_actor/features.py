"""What the model is told of each agent and workflow: numbers that exist for an agent never seen in training, too."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from predictor_actor.agents import Ids
from predictor_actor.base import END_S, OUTPUT_TOKENS, PROMPT_TOKENS, START_S, AgentFacts, Prefix
from predictor_actor.graph import Floats, GraphView

NAME_BUCKETS = 48
ANCHOR_BUCKETS = 24
STATISTICS = 12
NODE_FEATURES = NAME_BUCKETS + ANCHOR_BUCKETS + 1 + STATISTICS + 3
# Calls of a workflow that the model looks at, the latest ones.
WINDOW = 24
CALL_FEATURES = 5
WORKFLOW_FEATURES = 6
# Agents whose names and anchors are less alike than this are not neighbours.
LEAST_SIMILARITY = 0.3


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NodeArrays:
    """A graph as the model takes it. Nodes: START, the N agents, END, and one that stands for any unknown agent.

    Attributes:
        features: (N + 3, NODE_FEATURES).
        after, before, alike: for each edge (target, source) of shape (2, E) and its weight (E,): those that follow
            the target, those that it follows, and agents whose name or anchor are similar. The weights of a target's
            edges of a kind add up to 1 at most.
    """

    features: Floats
    after: tuple[Ids, Floats]
    before: tuple[Ids, Floats]
    alike: tuple[Ids, Floats]


def node_arrays(view: GraphView) -> NodeArrays:
    """Features and edges of a graph."""
    count = len(view.names)
    texts = _texts(view)
    features = np.zeros((count + 3, NODE_FEATURES), np.float32)
    features[1 : count + 1, : texts.shape[1]] = texts[:count]
    features[: count + 1, texts.shape[1] : texts.shape[1] + STATISTICS] = _statistics(view)
    for flag, node in enumerate((0, count + 1, count + 2)):
        features[node, NODE_FEATURES - 3 + flag] = 1
    weights = np.zeros((count + 3, count + 3), np.float32)
    weights[: count + 1, 1 : count + 1] = view.counts[:, 1:]
    weights[: count + 1, count + 1] = view.counts[:, 0]
    alike = np.zeros_like(weights)
    near = likeness(view)
    alike[1 : count + 1, 1 : count + 1] = np.where(near >= LEAST_SIMILARITY, near, 0)
    return NodeArrays(features, _edges(weights), _edges(weights.T), _edges(alike))


def likeness(view: GraphView) -> Floats:
    """How like each other agents' names and anchors are, shape (N, N): cosines, 0 on the diagonal."""
    texts = _texts(view)[: len(view.names)]
    sizes = np.linalg.norm(texts, axis=1, keepdims=True)
    unit = texts / np.maximum(sizes, 1e-6)
    alike = unit @ unit.T
    np.fill_diagonal(alike, 0)
    cosines: Floats = alike.astype(np.float32)
    return cosines


@dataclass(frozen=True, slots=True)
class PathArrays:
    """Workflows as the model takes them, B of them.

    Attributes:
        nodes: (B, WINDOW) numbers of the latest calls' nodes, right-aligned; 0 (START) before the first.
        present: (B, WINDOW), whether there is a call.
        calls: (B, WINDOW, CALL_FEATURES).
        workflow: (B, WORKFLOW_FEATURES).
    """

    nodes: Ids
    present: Flags
    calls: Floats
    workflow: Floats


def path_arrays(prefixes: Sequence[Prefix], numbers: Ids, unknown: int) -> PathArrays:
    """Paths of workflows.

    Args:
        numbers: the agents' numbers of all prefixes' paths, one after another; -1 for one that has none.
        unknown: the node that stands for those.
    """
    sizes = np.fromiter((len(prefix.agents) for prefix in prefixes), np.int64, len(prefixes))
    ends = np.cumsum(sizes)
    place = ends[:, None] - np.arange(WINDOW, 0, -1)
    present = place >= (ends - sizes)[:, None]
    place = np.where(present, place, 0)
    if len(numbers):
        nodes = np.where(present, np.where(numbers < 0, unknown, numbers)[place], 0)
        every = np.concatenate([prefix.numbers for prefix in prefixes])
        calls = np.where(present[:, :, None], _calls(every, sizes)[place], 0)
    else:
        nodes, calls = np.zeros(place.shape, np.int64), np.zeros((*place.shape, CALL_FEATURES), np.float32)
    # What came before the window is not looked at.
    calls[:, 0, 3] = 0
    lengths = np.fromiter((prefix.length for prefix in prefixes), np.float64, len(prefixes))
    return PathArrays(nodes, present, calls.astype(np.float32), _workflow(nodes, present, lengths))


def _calls(numbers: Floats, sizes: Ids) -> Floats:
    """CALL_FEATURES of every call; the latest of each workflow has no output yet, and the first nothing before it."""
    ends = np.cumsum(sizes)[sizes > 0]
    first = ends - sizes[sizes > 0]
    known = np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
    prompt, output = known[:, PROMPT_TOKENS].clip(0), known[:, OUTPUT_TOKENS].clip(0)
    output[ends - 1] = 0
    pause = np.zeros(len(numbers), np.float32)
    pause[1:] = numbers[1:, START_S] - numbers[:-1, END_S]
    pause[first] = np.nan
    timed = np.isfinite(pause)
    growth = np.diff(prompt, prepend=prompt[:1])
    growth[first] = 0
    pause = np.where(timed, pause, 0).clip(0)
    columns = (np.log1p(prompt) / 10, np.log1p(output) / 8, np.log1p(pause) / 6, (growth / 4000).clip(-4, 4), timed)
    return np.stack(columns, axis=1).astype(np.float32)


def _workflow(nodes: Ids, present: Flags, lengths: npt.NDArray[np.float64]) -> Floats:
    """WORKFLOW_FEATURES: length; how often, in which run, and how long ago its agent was called; how many agents."""
    same = (nodes == nodes[:, -1:]) & present
    count = same.sum(axis=1)
    backwards = same[:, ::-1]
    run = np.cumprod(backwards, axis=1).sum(axis=1)
    earlier = backwards[:, 1:]
    since = np.where(earlier.any(axis=1), earlier.argmax(axis=1) + 1, 30)
    ordered = np.sort(np.where(present, nodes, -1), axis=1)
    distinct = ((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] >= 0)).sum(axis=1) + (ordered[:, 0] >= 0)
    size = np.maximum(present.sum(axis=1), 1)
    columns = (
        np.log1p(lengths) / 4,
        count / size,
        np.log1p(count) / 3,
        np.log1p(run) / 2,
        np.log1p(since) / 3,
        distinct / 10,
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _statistics(view: GraphView) -> Floats:
    """What calls of START and of each agent have been like; all 0 for an agent that was never called."""
    into = view.counts[:, 1:].sum(axis=0)
    left = view.counts.sum(axis=1)
    chances = view.transitions()
    surprise = -(chances * np.log(chances, out=np.zeros_like(chances), where=chances > 0)).sum(axis=1)
    called = np.concatenate([[0.0], into])
    columns = (
        called > 0,
        np.log1p(called) / 5,
        called / max(1.0, float(into.sum())),
        chances[0] * (np.arange(len(chances)) > 0),
        chances[:, 0],
        chances.diagonal(),
        surprise / 3,
        np.log1p((view.counts > 0).sum(axis=1)) / 3,
        np.log1p(left) / 5,
        view.means[:, 0] / 10,
        view.means[:, 1] / 8,
        view.means[:, 3],
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _edges(weights: Floats) -> tuple[Ids, Floats]:
    """Edges of a dense (target, source) matrix, the weights of each target scaled to add up to 1."""
    totals = weights.sum(axis=1, keepdims=True)
    scaled = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    targets, sources = np.nonzero(scaled)
    return np.stack([targets, sources]), scaled[targets, sources]


def _texts(view: GraphView) -> Floats:
    """One row for each agent, at least one."""
    return np.stack([_identity(name, facts) for name, facts in zip(view.names, view.facts, strict=True)] or [_none()])


@lru_cache(maxsize=4096)
def _identity(name: str, facts: AgentFacts) -> Floats:
    """Hashed letter groups of the name and pieces of the anchor, each of length 1, and the anchor's size."""
    found = _none()
    text = f"^{name.lower()}$"
    for size in (2, 3, 4):
        for start in range(len(text) - size + 1):
            _hash(found[:NAME_BUCKETS], text[start : start + size].encode())
    for piece in facts.anchor_hashes:
        _hash(found[NAME_BUCKETS : NAME_BUCKETS + ANCHOR_BUCKETS], piece.to_bytes(9, "little", signed=True))
    for part in (found[:NAME_BUCKETS], found[NAME_BUCKETS : NAME_BUCKETS + ANCHOR_BUCKETS]):
        part /= max(1e-6, float(np.linalg.norm(part)))
    found[-1] = np.log1p(facts.anchor_tokens) / 10
    return found


def _none() -> Floats:
    return np.zeros(NAME_BUCKETS + ANCHOR_BUCKETS + 1, np.float32)


def _hash(buckets: Floats, piece: bytes) -> None:
    """Adds a piece to the bucket of its hash, with a sign, so that pieces that meet by chance cancel."""
    mixed = zlib.crc32(piece)
    buckets[(mixed >> 1) % len(buckets)] += 1 if mixed & 1 else -1
