"""The model (after PBKV, arXiv 2605.06472): GraphSAGE over the call graph, attention over the path, the text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor_actor.base import HORIZON
from predictor_actor.features import CALL_FEATURES, NODE_FEATURES, WINDOW, WORKFLOW_FEATURES, NodeArrays, PathArrays
from predictor_actor.geometric import RGCNConv, SimpleConv
from predictor_actor.newcomers import Newcomers
from predictor_actor.text_encoder import TextEncoder

HEADS = 4
FLOOR = 1e-4
SIGNALS = ("graph", "path", "text", "prior")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and what is switched on.

    Attributes:
        text_size: length of the hidden states; 0: there are none.
        signals: which of SIGNALS are used. Without "graph" agents are known by their features alone; "prior" is the
            online Markov chain's forecast, which the model corrects instead of learning it anew.
        backbone: "sage", or "rgcn" for the ablation.
    """

    width: int = 64
    hidden: int = 192
    text_size: int = 0
    signals: tuple[str, ...] = SIGNALS
    backbone: Literal["sage", "rgcn"] = "sage"
    dropout: float = 0.2

    def __post_init__(self) -> None:
        unknown = [signal for signal in self.signals if signal not in SIGNALS]
        if unknown:
            raise ValueError(f"unknown signal {unknown[0]!r}; choose from {', '.join(SIGNALS)}")
        if self.backbone not in ("sage", "rgcn"):
            raise ValueError(f"backbone is {self.backbone!r}; choose from sage, rgcn")
        if self.width % HEADS or self.width < HEADS or self.hidden < 1 or self.text_size < 0:
            raise ValueError(f"width {self.width} must be a multiple of {HEADS}, hidden and text_size not negative")


@dataclass(frozen=True, slots=True)
class Nodes:
    """`NodeArrays` as tensors."""

    features: Tensor
    edges: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, arrays: NodeArrays) -> Nodes:
        kinds = (arrays.after, arrays.before, arrays.alike)
        # PyTorch Geometric has the source first.
        edges = tuple((torch.from_numpy(ends[::-1].copy()), torch.from_numpy(weights)) for ends, weights in kinds)
        return cls(torch.from_numpy(arrays.features), edges)


@dataclass(frozen=True, slots=True)
class Paths:
    """`PathArrays` as tensors, with what else is known of each workflow.

    Attributes:
        prior: (B, K, N + 1) forecasts of the Markov chain.
        text: (B, text_size) hidden states, or None.
        has_text: (B,), whether there is one.
    """

    nodes: Tensor
    present: Tensor
    calls: Tensor
    workflow: Tensor
    prior: Tensor
    text: Tensor | None = None
    has_text: Tensor | None = None

    @classmethod
    def of(cls, arrays: PathArrays, prior: Tensor, text: Tensor | None = None, has_text: Tensor | None = None) -> Paths:
        return cls(
            torch.from_numpy(arrays.nodes),
            torch.from_numpy(arrays.present),
            torch.from_numpy(arrays.calls),
            torch.from_numpy(arrays.workflow),
            prior,
            text,
            has_text,
        )

    def __getitem__(self, rows: Tensor) -> Paths:
        """Some of the workflows."""
        return Paths(
            self.nodes[rows],
            self.present[rows],
            self.calls[rows],
            self.workflow[rows],
            self.prior[rows],
            None if self.text is None else self.text[rows],
            None if self.has_text is None else self.has_text[rows],
        )


class SageLayer(nn.Module):
    """GraphSAGE with mean aggregation weighted by probability, apart for each kind of neighbour."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(size, width)
        self.others = nn.ModuleList(nn.Linear(size, width, bias=False) for _ in range(3))
        self.gather = SimpleConv(aggr="sum")

    def forward(self, nodes: Tensor, edges: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        found: Tensor = self.own(nodes)
        for linear, (ends, weights) in zip(self.others, edges, strict=True):
            found = found + linear(self.gather(nodes, ends, weights))
        return found


class RgcnLayer(nn.Module):
    """R-GCN: one linear map for each kind of neighbour, and no weights of edges."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.conv = RGCNConv(size, width, num_relations=3)

    def forward(self, nodes: Tensor, edges: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        ends = torch.cat([ends for ends, _ in edges], dim=1)
        kinds = torch.cat([torch.full((ends.shape[1],), kind) for kind, (ends, _) in enumerate(edges)])
        found: Tensor = self.conv(nodes, ends, kinds)
        return found


class GraphEncoder(nn.Module):
    """Two layers over the call graph: an embedding for each node, of what it is and of who is around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = SageLayer if config.backbone == "sage" else RgcnLayer
        self.alone = nn.Linear(NODE_FEATURES, config.width)
        self.first = layer(NODE_FEATURES, config.width)
        self.second = layer(config.width, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.graph = "graph" in config.signals

    def forward(self, nodes: Nodes) -> Tensor:
        found: Tensor = self.alone(nodes.features)
        if self.graph:
            near = functional.gelu(self.first(nodes.features, nodes.edges))
            found = found + self.second(near, nodes.edges)
        found = self.norm(found)
        return found


KeysValues = tuple[Tensor, Tensor]


class PathEncoder(nn.Module):
    """Scaled dot-product attention from the latest call over the path; a call knows its place and its predecessor."""

    last: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.place = nn.Embedding(WINDOW, width)
        self.query = nn.Linear(3 * width, width)
        # Keys and values of a call are sums over what it is, what preceded it, its numbers and where it stands. So they
        # are never made for each call of each workflow: a score is a sum of scores of nodes, numbers and places, and
        # the weights of calls are added up by node before values are taken.
        self.own = nn.Linear(width, 2 * width, bias=False)
        self.previous = nn.Linear(width, 2 * width, bias=False)
        self.numbers = nn.Linear(CALL_FEATURES, 2 * width, bias=False)
        self.where = nn.Linear(width, 2 * width, bias=False)
        self.dropout = nn.Dropout(config.dropout / 2)
        # An empty path has one call that is none, so that its attention is defined.
        self.register_buffer("last", torch.arange(WINDOW) == WINDOW - 1, persistent=False)

    def prepare(self, embedded: Tensor) -> tuple[KeysValues, KeysValues]:
        """`Embedded.attention`."""
        heads = (HEADS, embedded.shape[1] // HEADS)
        own_keys, own_values = self.own(embedded).view(-1, 2, *heads).unbind(1)
        keys, values = self.previous(embedded).view(-1, 2, *heads).unbind(1)
        return (own_keys, own_values), (keys, values)

    def forward(self, prepared: tuple[KeysValues, KeysValues], latest: Tensor, paths: Paths) -> Tensor:
        batch, width = len(paths.nodes), self.place.embedding_dim
        heads = (HEADS, width // HEADS)
        before = functional.pad(paths.nodes[:, :-1], (1, 0))
        kinds = [
            (nodes[:, None].expand(-1, HEADS, -1), *each)
            for nodes, each in zip((paths.nodes, before), prepared, strict=True)
        ]
        place_keys, place_values = self.where(self.place.weight).view(WINDOW, 2, *heads).unbind(1)
        number_keys, number_values = self.numbers.weight.view(2, *heads, CALL_FEATURES)
        query = self.query(latest).view(batch, *heads) / heads[1] ** 0.5
        scores = torch.einsum("bhd,lhd->bhl", query, place_keys)
        scores = scores + torch.einsum("bhd,hdc->bhc", query, number_keys) @ paths.calls.transpose(1, 2)
        for nodes, keys, _ in kinds:
            scores = scores + torch.einsum("bhd,nhd->bhn", query, keys).gather(2, nodes)
        seen = paths.present | self.last
        weights = self.dropout(scores.masked_fill(~seen[:, None], float("-inf")).softmax(dim=2))
        found = torch.einsum("bhl,lhd->bhd", weights, place_values)
        found = found + torch.einsum("bhc,hdc->bhd", weights @ paths.calls, number_values)
        for nodes, _, values in kinds:
            summed = weights.new_zeros(batch, HEADS, len(values)).scatter_add(2, nodes, weights)
            found = found + torch.einsum("bhn,nhd->bhd", summed, values)
        return found.reshape(batch, width)


class Forecaster(nn.Module):
    """K distributions over agents and END in one pass. An agent is scored by its embedding, so a new one can win."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, hidden = config.width, config.hidden
        self.encoder = GraphEncoder(config)
        self.path = PathEncoder(config) if "path" in config.signals else None
        self.text = None
        if config.text_size and "text" in config.signals:
            self.text = TextEncoder(config.text_size, width)
            # What the text says by itself needs few examples when it need not go through the layers that mix signals.
            self.text_alone = nn.Linear(width, hidden, bias=False)
        size = width + WORKFLOW_FEATURES + (2 * width if self.path else 0) + (width if self.text else 0)
        self.fuse = nn.Sequential(
            nn.Linear(size, hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
        )
        self.heads = nn.Linear(hidden, HORIZON * hidden)
        self.candidates = nn.Linear(width, HORIZON * hidden)
        self.end = nn.Parameter(torch.zeros(HORIZON))
        self.trust = nn.Parameter(torch.ones(HORIZON))

    def embed(self, nodes: Nodes, newcomers: Newcomers) -> Embedded:
        """What is the same for all workflows; newcomers have their stand-in's embedding."""
        embedded: Tensor = self.encoder(nodes)
        if newcomers.spread is not None:
            embedded = torch.cat([embedded[torch.from_numpy(newcomers.stand_in)], embedded[-2:]])
        return Embedded(self, embedded)

    def score_by(self, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """`Embedded.scoring`."""
        hidden = self.config.hidden
        # A candidate's score is a product of two projections, of the workflow and of the agent. There are fewer agents
        # than workflows in a batch, so both are applied to the agents.
        scored = self.candidates(embedded[1:-1]).view(-1, HORIZON, hidden) / hidden**0.5
        weights = torch.einsum("nko,koi->kni", scored, self.heads.weight.view(HORIZON, hidden, hidden))
        offsets = torch.einsum("nko,ko->kn", scored, self.heads.bias.view(HORIZON, hidden))
        return weights, offsets

    def forward(self, embedded: Embedded, paths: Paths) -> Tensor:
        """Logits of shape (B, K, N + 1), the last for END."""
        return self.correct(embedded, paths)[0]

    def correct(self, embedded: Embedded, paths: Paths) -> tuple[Tensor, Tensor]:
        """The logits, and what of them the model itself has added to the prior's."""
        batch, nodes = len(paths.nodes), embedded.nodes
        parts = [nodes[paths.nodes[:, -1]], paths.workflow]
        if self.path is not None:
            near = nodes[paths.nodes[:, -3:]].flatten(1)
            parts += [nodes[paths.nodes[:, -2]], self.path(embedded.attention, near, paths)]
        if self.text is not None:
            said = self.text(paths.text, paths.has_text, batch)
            fused = self.fuse(torch.cat([*parts, said], dim=1)) + self.text_alone(said)
        else:
            fused = self.fuse(torch.cat(parts, dim=1))
        weights, offsets = embedded.scoring
        found = (fused @ weights.flatten(0, 1).T).view(batch, *offsets.shape) + offsets
        found = torch.cat([found[:, :, :-1], found[:, :, -1:] + self.end[:, None]], dim=2)
        if "prior" not in self.config.signals:
            return found, found
        return found + self.trust[:, None] * torch.log(paths.prior + FLOOR), found


class Embedded:
    """What a model makes of a graph, once for all workflows that it is then asked about.

    Attributes:
        nodes: (N + 3, width) embeddings of START, agents, END and the unknown agent.
    """

    def __init__(self, model: Forecaster, nodes: Tensor) -> None:
        self.nodes = nodes
        self._model = model

    @cached_property
    def attention(self) -> tuple[KeysValues, KeysValues]:
        """Keys and values, each (N + 3, HEADS, width / HEADS), of a call by its own node, and by the one before it."""
        if self._model.path is None:
            raise ValueError("a model without the path has no attention")
        return self._model.path.prepare(self.nodes)

    @cached_property
    def scoring(self) -> tuple[Tensor, Tensor]:
        """(K, N + 1, hidden) and (K, N + 1): what a workflow's state is multiplied by and what is added, to score who
        comes next."""
        return self._model.score_by(self.nodes)


def parameter_count(model: nn.Module) -> int:
    """Trained numbers of a model, those that project the text apart."""
    named = model.named_parameters()
    return sum(weights.numel() for name, weights in named if not name.startswith("text"))
