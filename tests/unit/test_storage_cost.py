"""`forecache bench storage`: what is loaded beside what is computed, and never the one for the other."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pytest

from serving.benchmark import storage_cost
from serving.benchmark.engine_process import Job, JobResult
from serving.benchmark.storage_cost import NothingLoadedError, measure
from serving.config import AppConfig


class MadeUpEngine:
    """Computes at 1 ms a token and loads at a quarter of that what it has seen, if it `keeps` it."""

    keeps = True

    def __init__(self, config: AppConfig) -> None:
        assert config.engine["hicache_storage_backend"] == "file"
        self.seen: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def ready(self) -> None:
        pass

    def run(self, job: Job) -> JobResult:
        known = self.keeps and job.seed in self.seen
        self.seen.add(job.seed)
        ttft = job.prompt_tokens / (4000 if known else 1000)
        return JobResult(1.0, 1.0, ttft, job.calls * job.prompt_tokens if known else 0)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_cost, "EngineProcess", MadeUpEngine)


def test_the_ratio_is_that_of_loaded_to_computed() -> None:
    figures = measure("random-qwen3", None, 1000, 3, lambda text: None)
    assert figures["computed_ttft_ms"] == 1000
    assert figures["loaded_ttft_ms"] == 250
    assert figures["loaded_ratio"] == figures["loaded_ratio_min"] == figures["loaded_ratio_max"] == 0.25


def test_what_was_computed_again_is_not_taken_for_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUpEngine, "keeps", False)
    with pytest.raises(NothingLoadedError, match="0 of 4000 tokens"):
        measure("random-qwen3", None, 1000, 3, lambda text: None)
