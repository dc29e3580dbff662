"""What a prefix costs from storage: the time to the first token when it is loaded, beside that when it is computed."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable

from serving.benchmark.budgets import Budget, Figures
from serving.benchmark.engine_process import EngineProcess, Job
from serving.config import AppConfig

BUDGETS = (Budget("loaded_ratio", "× computed", 1),)
# A prompt is computed in one round and loaded in the next: by then it is in storage.
_CALLS = 4


class NothingLoadedError(RuntimeError):
    """Prompts did not come from storage."""


def measure(
    source: str, folder: str | None, prompt_tokens: int, rounds: int, progress: Callable[[str], None]
) -> Figures:
    """Medians over the rounds of a call's mean time to the first token, and of their ratio.

    Args:
        source: the model, as `model.source`.
        folder: that files are kept in; None: a temporary one.
        prompt_tokens: of each call; at least 256, SGLang's least to load.

    Raises:
        EngineProcessError: the engine did not start or ended.
        NothingLoadedError: the prompts were computed again.
    """
    with tempfile.TemporaryDirectory(prefix="forecache-storage-", dir=folder) as root:
        progress("starting an engine")
        with EngineProcess(_config(source, root, prompt_tokens)) as engine:
            engine.ready()
            jobs = [Job(seed, _CALLS, 1, prompt_tokens) for seed in range(rounds + 2)]
            engine.run(jobs[0])  # warms up
            engine.run(jobs[1])
            computed, loaded = [], []
            for number in range(1, rounds + 1):
                progress(f"round {number} of {rounds}")
                found, made = engine.run(jobs[number]), engine.run(jobs[number + 1])
                if found.hit_storage < _CALLS * prompt_tokens // 2:
                    raise NothingLoadedError(f"{found.hit_storage} of {_CALLS * prompt_tokens} tokens were loaded")
                loaded.append(found.ttft_s)
                computed.append(made.ttft_s)
    ratios = [one / other for one, other in zip(loaded, computed, strict=True)]
    return {
        "computed_ttft_ms": 1000 * statistics.median(computed),
        "loaded_ttft_ms": 1000 * statistics.median(loaded),
        "loaded_ratio": statistics.median(ratios),
        "loaded_ratio_min": min(ratios),
        "loaded_ratio_max": max(ratios),
    }


def _config(source: str, root: str, prompt_tokens: int) -> AppConfig:
    tokens = 2 * _CALLS * prompt_tokens
    engine = {
        "max_total_tokens": tokens,
        "context_length": 2 * prompt_tokens,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_storage_backend": "file",
        "file_storage_path": root,
    }
    return AppConfig.model_validate({"model": {"source": source}, "cache": {"learned_dir": ""}, "engine": engine})
