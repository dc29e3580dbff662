"""A trained predictor as a folder: `model.json`, and the safetensors file it names with all arrays. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from predictor_actor.agents import MAX_AGENTS
from predictor_actor.base import AgentFacts
from predictor_actor.contexts import Contexts
from predictor_actor.graph import GraphView
from predictor_actor.graphsage import Calibration, GraphSage
from predictor_actor.markov import Markov
from predictor_actor.model import Forecaster, ModelConfig

FORMAT = 1
REST = "model.json"
MAX_BYTES = 256 << 20


class CheckpointError(ValueError):
    """The folder holds no checkpoint that can be used; the message says why and what to do."""


def save_checkpoint(predictor: GraphSage, folder: Path, notes: dict[str, Any] | None = None) -> None:
    """Writes the predictor into a folder, which is made; a reader sees the old checkpoint or the new one.

    Args:
        notes: what else to tell in `model.json`, such as the figures of its training.
    """
    view = predictor.markov.graph.view()
    arrays = {f"model.{name}": weights.numpy() for name, weights in predictor.model.state_dict().items()}
    arrays |= {"graph.counts": view.counts, "graph.means": view.means, "graph.chances": view.chances}
    arrays |= {f"contexts.{name}": table for name, table in predictor.markov.contexts.tables().items()}
    weights = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    digest = hashlib.sha256(weights).hexdigest()
    rest = {
        "format": FORMAT,
        "version": predictor.version,
        "sha256": digest,
        "config": asdict(predictor.model.config),
        "calibration": asdict(predictor.calibration),
        "order": predictor.markov.order,
        "memory": predictor.markov.graph.memory,
        "agents": [{"name": name, **asdict(facts)} for name, facts in zip(view.names, view.facts, strict=True)],
        "notes": notes or {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    # The weights' file has the name that the JSON will give it, so that the two are replaced as one.
    name = f"{digest[:16]}.safetensors"
    _replace(folder / name, weights)
    _replace(folder / REST, json.dumps(rest | {"weights": name}, indent=2).encode() + b"\n")
    for old in folder.glob("*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> GraphSage:
    """The predictor in a folder, as it was saved.

    Raises:
        CheckpointError: it is missing, damaged, of another format, or does not fit this version's model.
    """
    try:
        said = json.loads(_read(folder / REST))
        if said["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {said['format']!r}, this version reads {FORMAT}: run `forecache train` again"
            )
        name = str(said["weights"])
        if Path(name).name != name:
            raise CheckpointError(f"{folder}: weights are in {name!r}, which is not a plain file name")
        data = _read(folder / name)
        if hashlib.sha256(data).hexdigest() != said["sha256"]:
            raise CheckpointError(f"{folder}: {name} is not what {REST} was written with; copy both again")
        return _restore(said, load(data))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is no checkpoint ({type(error).__name__}: {error}); `forecache train` writes one"
        ) from error


def _restore(said: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> GraphSage:
    config = ModelConfig(**{**said["config"], "signals": tuple(said["config"]["signals"])})
    model = Forecaster(config)
    weights = {name: torch.from_numpy(array) for name, array in _under("model.", arrays).items()}
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has numbers that are not finite")
    model.load_state_dict(weights)
    agents = said["agents"]
    names = tuple(str(agent["name"]) for agent in agents)
    if len(set(names)) != len(names) or len(names) > MAX_AGENTS:
        raise ValueError(f"{len(names)} agents, of which {len(set(names))} differ; at most {MAX_AGENTS} can be known")
    facts = tuple(AgentFacts(int(agent["anchor_tokens"]), tuple(map(int, agent["anchor_hashes"]))) for agent in agents)
    counts, means, chances = (arrays[f"graph.{name}"] for name in ("counts", "means", "chances"))
    size = len(names) + 1
    if counts.shape != (size, size) or means.shape != (size, 4) or chances.shape != (size,):
        raise ValueError(f"the graph has shapes {counts.shape}, {means.shape}, {chances.shape} for {len(names)} agents")
    markov = Markov(int(said["order"]), int(said["memory"]))
    counts, chances = (np.nan_to_num(each).clip(0, 1 << 31) for each in (counts, chances))
    markov.graph.restore(GraphView(names, counts, np.nan_to_num(means), facts, chances))
    tables = _under("contexts.", arrays)
    if int(tables["followers"].max(initial=0)) > len(names):
        raise ValueError(f"a context is followed by agent {tables['followers'].max()} of {len(names)}")
    markov.contexts = Contexts.restored(tables, int(said["memory"]))
    markov.contexts.reserve(len(names))
    calibration = Calibration(*(tuple(map(float, said["calibration"][field])) for field in ("temperature", "share")))
    return GraphSage(model, calibration, markov, str(said["version"]))


def _under(prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, more than any checkpoint ({MAX_BYTES})")
    return path.read_bytes()


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
