"""Trains the model: cross-fitted priors, early stopping on workflows kept aside, calibration. Deterministic by seed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW

from predictor_actor.base import HORIZON, WorkflowTrace
from predictor_actor.examples import IGNORED, Fold, facts_of, make_folds
from predictor_actor.graphsage import Calibration, GraphSage
from predictor_actor.markov import Markov
from predictor_actor.model import FLOOR, Forecaster, ModelConfig

Progress = Callable[[float, str], None]
State = dict[str, Tensor]


class TrainError(ValueError):
    """The traces cannot be trained on."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Attributes:
        folds: parts into which the traces are split; see `make_folds`.
        few_calls: with no more calls than this every fold is kept aside in turn, to find when to stop and how to
            calibrate, and the model is then trained on all of them; with more, only the first is.
        patience: epochs without a better loss of what is kept aside, before training stops.
        max_s: no epoch begins after so many seconds of wall clock; what is best by then is taken.
        threads: of PyTorch; None: as they are. The model is so small that a second one seldom helps.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    order: int = 5
    memory: int = 128
    folds: int = 5
    few_calls: int = 4000
    epochs: int = 60
    patience: int = 6
    batch: int = 256
    rate: float = 2e-3
    decay: float = 0.05
    shrink: float = 0.02
    seed: int = 0
    max_s: float | None = None
    threads: int | None = 1


@dataclass(frozen=True, slots=True)
class Trained:
    """The predictor, and how its training went.

    Attributes:
        epochs: how many the final model took.
        held_out_nll: mean negative log likelihood at k = 1..K of the calibrated model on what was kept aside.
        prior_nll: that of the Markov chain.
        seconds: wall clock.
    """

    predictor: GraphSage
    epochs: int
    held_out_nll: tuple[float, ...]
    prior_nll: tuple[float, ...]
    seconds: float


def train(
    traces: Sequence[WorkflowTrace], config: TrainConfig | None = None, progress: Progress = lambda share, text: None
) -> Trained:
    """Trains a predictor on traces, which should be in the order of time.

    Args:
        progress: hears which share of the work is done, and what is being done.

    Raises:
        TrainError: fewer than two workflows have a call.
    """
    config = config or TrainConfig()
    start = time.monotonic()
    traces = [trace for trace in traces if trace.calls]
    if len(traces) < 2:
        raise TrainError(f"{len(traces)} workflows have calls: two are the least that can be trained on")
    before = torch.get_num_threads()
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            return _train(traces, config, progress, start)
    finally:
        torch.set_num_threads(before)


def _train(traces: Sequence[WorkflowTrace], config: TrainConfig, progress: Progress, start: float) -> Trained:
    progress(0.0, "reading")
    count = min(config.folds, len(traces))
    folds = make_folds(traces, count, config.order, config.memory, config.model.text_size)
    few = sum(len(fold.targets) for fold in folds) <= config.few_calls
    runs = count + 1 if few else 1
    limit = None if config.max_s is None else start + config.max_s
    runner = _Runner(config, limit, lambda share, text: progress((runner.done + share) / runs, text))
    kept: list[tuple[Tensor, Fold]] = []
    epochs: list[int] = []
    for number in range(count if few else 1):
        rest = folds[:number] + folds[number + 1 :]
        model, best = runner.fit(rest, folds[number], f"fold {number + 1} of {count}" if few else "training")
        kept.append((predict(model, folds[number]), folds[number]))
        epochs.append(best)
        runner.done += 1
    calibration = calibrate(
        torch.cat([logits for logits, _ in kept]),
        torch.cat([fold.paths.prior for _, fold in kept]),
        torch.cat([fold.targets for _, fold in kept]),
    )
    if few:
        model, _ = runner.fit(folds, None, "all of it", round(sum(epochs) / len(epochs)))
    markov = Markov(config.order, config.memory)
    markov.introduce(facts_of(traces))
    for trace in traces:
        markov.learn(trace)
    held_out = [calibration.apply(logits, fold.paths.prior) for logits, fold in kept]
    return Trained(
        GraphSage(model, calibration, markov, _digest(model)),
        round(sum(epochs) / len(epochs)),
        _nll(torch.cat(held_out), torch.cat([fold.targets for _, fold in kept])),
        _nll(torch.cat([fold.paths.prior for _, fold in kept]), torch.cat([fold.targets for _, fold in kept])),
        time.monotonic() - start,
    )


class _Runner:
    """Fits models, of which each begins with the same seed."""

    def __init__(self, config: TrainConfig, limit: float | None, progress: Progress) -> None:
        self.done = 0
        self._config = config
        self._limit = limit
        self._progress = progress

    def fit(self, folds: Sequence[Fold], held_out: Fold | None, what: str, epochs: int = 0) -> tuple[Forecaster, int]:
        """The model at the epoch that was best on what is kept aside, or after `epochs`; and the number of epochs."""
        config = self._config
        torch.manual_seed(config.seed)
        generator = torch.Generator().manual_seed(config.seed)
        model = Forecaster(config.model)
        if model.text is not None:
            paths = [fold.paths for fold in folds]
            model.text.standardise([each.text[each.has_text] for each in paths if each.text is not None])
        optimizer = AdamW(model.parameters(), lr=config.rate, weight_decay=config.decay)
        best, best_epoch, state = float("inf"), 0, _copy(model)
        last = epochs if held_out is None else config.epochs
        for epoch in range(1, last + 1):
            if self._limit is not None and time.monotonic() > self._limit:
                break
            self._progress((epoch - 1) / last, f"{what}, epoch {epoch}")
            self._epoch(model, folds, optimizer, generator)
            if held_out is None:
                continue
            loss = _loss(predict(model, held_out), held_out.targets).item()
            if loss < best - 1e-4:
                best, best_epoch, state = loss, epoch, _copy(model)
            elif epoch - best_epoch >= config.patience:
                break
        if held_out is not None:
            model.load_state_dict(state)
        return model.eval(), best_epoch

    def _epoch(self, model: Forecaster, folds: Sequence[Fold], optimizer: AdamW, generator: torch.Generator) -> None:
        model.train()
        batches = [
            (fold, rows)
            for fold in folds
            for rows in torch.randperm(len(fold.targets), generator=generator).split(self._config.batch)
        ]
        for place in torch.randperm(len(batches), generator=generator).tolist():
            fold, rows = batches[place]
            targets = fold.targets[rows]
            if not (targets != IGNORED).any():
                continue
            logits, correction = model.correct(model.embed(fold.nodes, fold.newcomers), fold.paths[rows])
            loss = _loss(logits, targets) + self._config.shrink * correction.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.inference_mode()
def predict(model: Forecaster, fold: Fold) -> Tensor:
    """Logits of a fold's examples."""
    model.eval()
    logits: Tensor = model(model.embed(fold.nodes, fold.newcomers), fold.paths)
    return logits


def calibrate(logits: Tensor, prior: Tensor, targets: Tensor) -> Calibration:
    """The temperature and share with which each step's likelihood of what came is highest, over a grid."""
    temperatures, shares = [], []
    for k in range(HORIZON):
        known = targets[:, k] != IGNORED
        right = targets[known, k][:, None]
        chain = prior[known, k].gather(1, right)
        best = (float("inf"), 1.0, 1.0)
        for temperature in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0):
            given = torch.softmax(logits[known, k] / temperature, dim=1).gather(1, right)
            for share in (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98):
                loss = -torch.log(share * given + (1 - share) * chain + 1e-9).mean().item()
                best = min(best, (loss, temperature, share))
        temperatures.append(best[1])
        shares.append(best[2])
    return Calibration(tuple(temperatures), tuple(shares))


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def _nll(steps: Tensor, targets: Tensor) -> tuple[float, ...]:
    found = []
    for k in range(HORIZON):
        known = targets[:, k] != IGNORED
        given = steps[known, k].gather(1, targets[known, k][:, None])
        found.append(-torch.log(given.clamp(min=FLOOR)).mean().item())
    return tuple(found)


def _digest(model: Forecaster) -> str:
    """Tells models apart: equal weights, equal version."""
    found = hashlib.sha256()
    for weights in model.state_dict().values():
        found.update(weights.numpy().tobytes())
    return found.hexdigest()[:8]


def _copy(model: Forecaster) -> State:
    return {name: weights.detach().clone() for name, weights in model.state_dict().items()}
