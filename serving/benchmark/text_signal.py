"""`forecache bench text-signal`: what the hidden states of prompts add to the forecasts of the next agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor_actor.trace_import import Label
from predictor_actor.train import TrainConfig
from serving.benchmark.engine_process import EngineProcess
from serving.benchmark.hidden_states import ENGINE_ARGUMENTS, Prompt, ReadJob, States, kept_states, states_file
from serving.benchmark.predictor_study import Study, run_study
from serving.benchmark.text_tau import read_tau
from serving.benchmark.text_workflows import TextWorkflow, generate
from serving.config import AppConfig, CacheConfig
from serving.config import ModelConfig as ServedModel

MODEL = "smollm2-135m"
# Prompts go to the engine in parts, so that progress is seen and Ctrl-C heard.
PART = 16
SEED = 0
# Room in the engine for the prompts whose beginnings may come again.
CACHED_TOKENS = 8192

Progress = Callable[[float, str], None]
"""Hears which share of the work is done, and what is being done."""


@dataclass(frozen=True, slots=True)
class WorkflowSet:
    """Workflows that are measured on.

    Attributes:
        labels: what names a caller; each gives figures of its own.
    """

    title: str
    workflows: tuple[TextWorkflow, ...]
    labels: tuple[Label, ...] = ("agent",)


def workflow_sets(count: int, tau: Path | None) -> list[WorkflowSet]:
    """`count` generated workflows; and the runs of tau-bench in the folder, if it has some.

    Raises:
        TauError: a line of a file is no run.
        OSError: a file cannot be read.
    """
    runs = tuple(read_tau(tau)) if tau is not None else ()
    sets = [WorkflowSet("generated", tuple(generate(count, SEED)))]
    return [*sets, WorkflowSet("tau-bench", runs, ("agent", "agent+tool"))] if runs else sets


def measure(
    of: WorkflowSet,
    limit: int,
    seeds: int,
    folder: Path | None,
    progress: Progress,
    config: TrainConfig | None = None,
) -> dict[str, dict[str, Any]]:
    """Reads the hidden states of the prompts, and trains and tests with and without them.

    Args:
        limit: how many of a prompt's last tokens are read.
        seeds: how often it is trained and tested, each time on other workflows.
        folder: where hidden states are kept; None: nowhere.
        config: how to train; the size of the text is filled in.

    Returns:
        The figures of a study, as `run_study` has them, by title and label.

    Raises:
        EngineProcessError: the engine did not start, or ended.
        StudyError: too few workflows.
        OSError: the folder cannot be written.
    """
    states = read_states(of.workflows, limit, folder, progress)
    config = config or TrainConfig()
    config = replace(config, model=replace(config.model, text_size=states[0].shape[1]))
    study = Study(seeds=seeds, ablations=("text",), config=config)
    found = {}
    for label in of.labels:
        traces = [workflow.trace(each, label) for workflow, each in zip(of.workflows, states, strict=True)]
        found[f"{of.title}, by {label}"] = run_study(traces, study, progress)
    return found


def read_states(workflows: Sequence[TextWorkflow], limit: int, folder: Path | None, progress: Progress) -> list[States]:
    """The hidden states of each workflow's prompts, (calls, size), from the folder or from an engine started for it.

    Args:
        limit: how many of a prompt's last tokens are read.
        folder: where states are kept; None: nowhere.

    Raises:
        EngineProcessError: the engine did not start, or ended.
        OSError: the folder cannot be written.
    """
    prompts = [call.messages for workflow in workflows for call in workflow.calls]
    if folder is None:
        states = _read(prompts, limit, progress)
    else:
        file = states_file(folder, MODEL, prompts, limit)
        states = kept_states(file, len(prompts), lambda: _read(prompts, limit, progress))
    ends = np.cumsum([len(workflow.calls) for workflow in workflows])
    return np.split(states, ends[:-1])


def _read(prompts: Sequence[Prompt], limit: int, progress: Progress) -> States:
    config = AppConfig(
        model=ServedModel(source=MODEL),
        cache=CacheConfig(backend="sglang"),
        engine={
            **ENGINE_ARGUMENTS,
            "max_total_tokens": max(CACHED_TOKENS, 4 * limit),
            "context_length": limit + 16,
            "max_running_requests": 1,
        },
    )
    parts = []
    progress(0.0, "starting the engine")
    with EngineProcess(config) as engine:
        engine.ready()
        for start in range(0, len(prompts), PART):
            progress(start / len(prompts), f"hidden states, {start} of {len(prompts)} prompts")
            parts.append(engine.read(ReadJob(tuple(prompts[start : start + PART]), limit)))
    return np.concatenate(parts)
