"""Fixtures of the engine tests: one real SGLang engine, shared by the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_under_test import CONFIG, EngineUnderTest, run_engine

from serving.config import CacheConfig


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[EngineUnderTest]:
    engine = EngineUnderTest(CONFIG)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def plain_answers() -> dict[str, str]:
    """What SGLang's own cache, without a host tier, answers to the mixed prompts: an engine in a process of its own."""
    plain = CONFIG.model_copy(
        update={
            "cache": CacheConfig(backend="sglang"),
            "engine": {**CONFIG.engine, "enable_hierarchical_cache": False, "max_total_tokens": 40_000},
        }
    )
    answers: dict[str, str] = run_engine(plain, "one by one")["answers"]
    return answers


@pytest.fixture
def engine(shared_engine: EngineUnderTest) -> EngineUnderTest:
    """The shared engine with empty caches."""
    shared_engine.flush()
    return shared_engine
