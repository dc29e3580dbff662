"""The text's way into the model: what is taken out of hidden states, and how few branches it is learned from."""

from __future__ import annotations

import numpy as np
import torch
from predictor_workflows import trace_of

from predictor_actor.base import WorkflowTrace
from predictor_actor.evaluate import outcomes
from predictor_actor.model import ModelConfig
from predictor_actor.text_encoder import FARTHEST, TextEncoder
from predictor_actor.train import TrainConfig, train

SIZE = 64


def anisotropic(count: int, seed: int) -> tuple[list[WorkflowTrace], list[int]]:
    """Workflows that their text sends one of two ways. As in a language model, states share most of their length."""
    common, says = np.random.default_rng(99).normal(size=(2, SIZE))
    rng = np.random.default_rng(seed)
    traces, sides = [], rng.integers(2, size=count).tolist()
    for number, side in enumerate(sides):
        state = 20 * common + rng.normal(size=SIZE) + side * says
        hidden = state.astype(np.float16).tobytes()
        traces.append(trace_of(["planner", ["coder", "tester"][side]], f"{seed}-{number}", hidden=hidden))
    return traces, sides


def test_a_branch_is_learned_from_tens_of_workflows_though_states_share_most_of_their_length() -> None:
    (learning, _), (test, _) = anisotropic(60, 0), anisotropic(40, 1)
    config = TrainConfig(ModelConfig(16, 32, text_size=SIZE), few_calls=0, patience=15)
    assert outcomes(train(learning, config).predictor, test).first[::2, 0].mean() > 0.85


def test_what_all_states_share_does_not_reach_the_model() -> None:
    states = torch.randn(50, SIZE, generator=torch.Generator().manual_seed(0))
    shift = 100 * torch.ones(SIZE)
    plain, shifted = TextEncoder(SIZE, 8).eval(), TextEncoder(SIZE, 8).eval()
    shifted.load_state_dict(plain.state_dict())
    plain.standardise([states[:20], states[20:]])
    shifted.standardise([states + shift])
    present = torch.ones(50, dtype=torch.bool)
    assert torch.allclose(plain(states, present, 50), shifted(states + shift, present, 50), atol=1e-3)


def test_a_call_without_a_state_has_its_own_reading_whatever_stands_in_its_row() -> None:
    encoder = TextEncoder(SIZE, 8).eval()
    read = encoder(torch.full((2, SIZE), 3.0), torch.tensor([True, False]), 2)
    assert torch.equal(read[1], encoder.absent)
    assert not torch.equal(read[0], encoder.absent)
    assert torch.equal(encoder(None, None, 2), encoder.absent.expand(2, -1))


def test_a_coordinate_that_never_varied_and_a_state_like_no_other_stay_bounded() -> None:
    states = torch.randn(50, SIZE, generator=torch.Generator().manual_seed(0))
    states[:, 0] = 1
    encoder = TextEncoder(SIZE, 8).eval()
    encoder.standardise([states])
    far = encoder(torch.full((1, SIZE), 6e4), torch.tensor([True]), 1)
    most = FARTHEST * encoder.project.weight.abs().sum(dim=1) + encoder.project.bias.abs()
    assert torch.isfinite(encoder.scale).all()
    assert (far.abs() <= most + 1e-4).all()


def test_one_state_is_too_few_to_standardise_by() -> None:
    encoder = TextEncoder(SIZE, 8)
    encoder.standardise([torch.randn(1, SIZE)])
    assert torch.equal(encoder.mean, torch.zeros(SIZE))
    assert torch.equal(encoder.scale, torch.ones(SIZE))
