"""`forecache bench text-signal`: what the hidden states of prompts add to the forecasts of the next agents."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from predictor_actor.base import HORIZON, Predictor, WorkflowTrace
from predictor_actor.evaluate import outcomes
from predictor_actor.model import SIGNALS, ModelConfig
from predictor_actor.train import TrainConfig, train
from serving.benchmark.bootstrap import estimate
from serving.benchmark.engine_process import EngineProcess
from serving.benchmark.hidden_states import PART, Prompt, ReadJob, States, kept_states, states_file
from serving.benchmark.text_workflows import TextWorkflow
from serving.config import AppConfig, CacheConfig
from serving.config import ModelConfig as ServedModel

MODEL = "smollm2-135m"
# Share of the workflows that a model is tested on and never sees.
HELD_OUT = 0.25
PREDICTORS = ("markov", "without", "with")

Progress = Callable[[str], None]
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SignalFigures:
    """Top-1 at k = 1..K on held-out workflows, each as [value, low, high] of its 95 % interval.

    Attributes:
        markov, without, with_text: of the online chain, and of the model without and with the text signal.
        gain: with_text - without, paired by workflow.
        forecasts: how many were judged, over all seeds.
    """

    workflows: int
    seeds: int
    forecasts: int
    markov: list[list[float] | None]
    without: list[list[float] | None]
    with_text: list[list[float] | None]
    gain: list[list[float] | None]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def read_workflows(
    workflows: Sequence[TextWorkflow], limit: int, folder: Path | None, progress: Progress
) -> list[WorkflowTrace]:
    """The workflows with the hidden states of their prompts, from the folder or from an engine that is started for it.

    Args:
        limit: how many of a prompt's last tokens are read.

    Raises:
        EngineProcessError: the engine did not start or ended.
        OSError: the folder cannot be written.
    """
    prompts = [call.messages for workflow in workflows for call in workflow.calls]
    if folder is None:
        states = _read(prompts, limit, progress)
    else:
        file = states_file(folder, MODEL, prompts, limit)
        states = kept_states(file, len(prompts), lambda: _read(prompts, limit, progress))
    rows = iter(states)
    return [workflow.trace([next(rows).tobytes() for _ in workflow.calls]) for workflow in workflows]


def _read(prompts: Sequence[Prompt], limit: int, progress: Progress) -> States:
    config = AppConfig(
        model=ServedModel(source=MODEL),
        cache=CacheConfig(backend="sglang"),
        engine={
            "enable_return_hidden_states": True,
            "max_total_tokens": 16 * limit,
            "context_length": limit + 16,
            "max_running_requests": 8,
        },
    )
    parts = []
    progress("starting the engine")
    with EngineProcess(config) as engine:
        engine.ready()
        for start in range(0, len(prompts), PART):
            progress(f"hidden states: {start} of {len(prompts)} prompts")
            parts.append(engine.read(ReadJob(tuple(prompts[start : start + PART]), limit)))
    return np.concatenate(parts)


def measure(traces: Sequence[WorkflowTrace], seeds: int, progress: Progress) -> SignalFigures:
    """Trains with and without the text on the same splits and seeds, and judges both on the workflows kept aside.

    Args:
        traces: every call with its hidden state.
        seeds: each has a split of its own.

    Raises:
        TrainError: too few workflows.
    """
    size = len(traces[0].calls[0].hidden or b"") // 2
    # One row a workflow, summed over seeds: how many were right at each k, for each predictor, and of how many.
    sums = np.zeros((len(traces), len(PREDICTORS) * HORIZON + 1))
    for seed in range(seeds):
        order = random.Random(seed).sample(range(len(traces)), len(traces))
        aside = max(1, round(HELD_OUT * len(traces)))
        tested, trained_on = order[:aside], [traces[place] for place in sorted(order[aside:])]
        for text in (False, True):
            signals = SIGNALS if text else tuple(signal for signal in SIGNALS if signal != "text")
            config = TrainConfig(model=ModelConfig(text_size=size if text else 0, signals=signals), seed=seed)
            name = f"seed {seed + 1} of {seeds}, {'with' if text else 'without'} text"
            predictor = train(trained_on, config, lambda share, what, name=name: progress(f"{name}: {what}")).predictor
            column = PREDICTORS.index("with" if text else "without") * HORIZON
            sums[tested, column : column + HORIZON] += _right(predictor, [traces[place] for place in tested])
        sums[tested, :HORIZON] += _right(predictor.markov, [traces[place] for place in tested])
        sums[tested, -1] += [len(traces[place].calls) for place in tested]
    return _figures(sums, len(traces), seeds)


def _right(predictor: Predictor, traces: Sequence[WorkflowTrace]) -> Sums:
    """How many forecasts of each workflow had the likeliest right, shape (workflows, K)."""
    judged = outcomes(predictor, traces)
    return np.stack(
        [np.bincount(judged.workflow, judged.first[:, k], minlength=len(traces)) for k in range(HORIZON)], axis=1
    )


def _figures(sums: Sums, workflows: int, seeds: int) -> SignalFigures:
    tested = sums[sums[:, -1] > 0]
    columns = len(PREDICTORS) * HORIZON
    shares = estimate([tested], [lambda s, c=column: s[..., c] / s[..., -1] for column in range(columns)])
    gains = [lambda s, k=k: (s[..., 2 * HORIZON + k] - s[..., HORIZON + k]) / s[..., -1] for k in range(HORIZON)]
    markov, without, with_text = (shares[start : start + HORIZON] for start in range(0, columns, HORIZON))
    gain = estimate([tested], gains)
    return SignalFigures(workflows, seeds, int(sums[:, -1].sum()), markov, without, with_text, gain)


def print_figures(name: str, figures: SignalFigures, console: Console) -> None:
    """The figures for people."""
    table = Table("top-1", *(f"k = {k}" for k in range(1, HORIZON + 1)), title=f"{name}, {figures.workflows} workflows")
    rows = {
        "Markov": figures.markov,
        "without text": figures.without,
        "with text": figures.with_text,
        "gain": figures.gain,
    }
    for label, row in rows.items():
        table.add_row(label, *("-" if one is None else f"{one[0]:.3f} ({one[1]:.3f} to {one[2]:.3f})" for one in row))
    console.print(table)
