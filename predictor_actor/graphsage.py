"""The learned predictor as it serves: the model over an online call graph, calibrated, and the chain it corrects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from predictor_actor.base import HORIZON, AgentFacts, Forecasts, Predictor, Prefix
from predictor_actor.examples import read_paths
from predictor_actor.features import node_arrays
from predictor_actor.markov import Markov
from predictor_actor.model import Forecaster, Nodes
from predictor_actor.newcomers import Newcomers

# Embeddings are worked out anew when the graph has changed this often, or has a new agent.
REFRESH = 64


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on workflows kept aside, for each k: logits are divided by the temperature, and the model's distribution
    has this share against the Markov chain's."""

    temperature: tuple[float, ...] = (1.0,) * HORIZON
    share: tuple[float, ...] = (1.0,) * HORIZON

    def __post_init__(self) -> None:
        if len(self.temperature) != HORIZON or len(self.share) != HORIZON:
            raise ValueError(f"calibration needs {HORIZON} temperatures and shares")
        if min(self.temperature) <= 0 or not all(0 <= share <= 1 for share in self.share):
            raise ValueError(f"temperatures {self.temperature} must be positive and shares {self.share} from 0 to 1")

    def apply(self, logits: Tensor, prior: Tensor) -> Tensor:
        """Probabilities of shape (B, K, N + 1); what has ended stays ended."""
        temperature = torch.tensor(self.temperature)[:, None]
        share = torch.tensor(self.share)[:, None]
        mixed = share * torch.softmax(logits / temperature, dim=2) + (1 - share) * prior
        ended = torch.cummax(mixed[:, :, -1:], dim=1).values
        alive = mixed[:, :, :-1]
        alive = alive * ((1 - ended) / alive.sum(dim=2, keepdim=True).clamp(min=1e-12))
        if not alive.shape[2]:
            ended = torch.ones_like(ended)
        return torch.cat([alive, ended], dim=2)


class GraphSage(Predictor):
    """Forecasts by a trained model, whose graph and chain go on learning; the model itself does not change.

    Args:
        model: trained.
        markov: the chain, with its graph, as learned from the traces the model was trained on, or since.
        version: names the model.
    """

    name: ClassVar[str] = "graphsage"

    def __init__(self, model: Forecaster, calibration: Calibration, markov: Markov, version: str) -> None:
        self.model = model.eval()
        self.calibration = calibration
        self.markov = markov
        self.version = version
        self._embedded: tuple[Tensor, Newcomers] | None = None
        self._embedded_at: tuple[int, tuple[str, ...]] = (0, ())

    def introduce(self, facts: Mapping[str, AgentFacts]) -> None:
        self.markov.introduce(facts)

    def observe(self, prefix: Prefix) -> None:
        self.markov.observe(prefix)

    def ended(self, prefix: Prefix) -> None:
        self.markov.ended(prefix)

    @torch.inference_mode()
    def forecast(self, prefixes: Sequence[Prefix]) -> Forecasts:
        embedded, newcomers = self._nodes()
        paths = read_paths(prefixes, self.markov, newcomers, self.model.config.text_size)
        steps = self.calibration.apply(self.model(embedded, paths), paths.prior)
        name = f"{self.name} {self.version}"
        return Forecasts(self.markov.graph.agents.names, steps.numpy(), name)

    def _nodes(self) -> tuple[Tensor, Newcomers]:
        graph = self.markov.graph
        version, names = self._embedded_at
        if self._embedded is None or graph.agents.names != names or graph.version - version >= REFRESH:
            view = graph.view()
            newcomers = Newcomers.of(view)
            self._embedded = self.model.embed(Nodes.of(node_arrays(view)), newcomers), newcomers
            self._embedded_at = (graph.version, view.names)
        return self._embedded
