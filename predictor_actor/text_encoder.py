"""What a prompt's hidden state says, as the model takes it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Coordinates are scaled up to so many times the mean spread, and no farther: some hardly vary in training.
MOST_SCALE = 10.0
# In spreads: a state unlike all that were trained on cannot drown the rest.
FARTHEST = 6.0
# Of coordinates, and of what is read from them: there are many more coordinates than branches seen.
DROPOUT = (0.5, 0.3)


class TextEncoder(nn.Module):
    """A projection of standardised states, linear: what tells two prompts apart is a direction already.

    Hidden states of one model share most of their length: 0.95 to 0.97 of it was one direction in prompts of
    SmolLM2-135M, and normalising a state by itself leaves that as it is. So the mean and spread of each coordinate over
    the states trained on are taken out first. It also has what stands for a call without a state.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.project = nn.Linear(size, width)
        self.absent = nn.Parameter(torch.zeros(width))
        self.drop, self.drop_read = (nn.Dropout(share) for share in DROPOUT)
        self.mean: Tensor
        self.scale: Tensor

    def standardise(self, states: Sequence[Tensor]) -> None:
        """Takes mean and spread from the states trained on, each of shape (calls, size); without two they stay."""
        every = torch.cat(list(states))
        if len(every) < 2:
            return
        spread = every.std(dim=0)
        self.mean = every.mean(dim=0)
        self.scale = 1 / spread.clamp(min=max(1e-6, spread.mean().item() / MOST_SCALE))

    def forward(self, states: Tensor | None, present: Tensor | None, batch: int) -> Tensor:
        """(B, width) of (B, size) states, of which those `present` count; None: there are none."""
        if states is None or present is None:
            return self.absent.expand(batch, -1)
        standard = ((states - self.mean) * self.scale).clamp(-FARTHEST, FARTHEST)
        read: Tensor = self.drop_read(torch.where(present[:, None], self.project(self.drop(standard)), self.absent))
        return read
