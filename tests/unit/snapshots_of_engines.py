"""Made-up snapshots, and strategies for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cache_actor.snapshots import EngineSnapshot, Resident

ENGINES = [f"engine-{number}" for number in range(5)]
WORKFLOWS = [f"w{number}" for number in range(8)]
AGENTS = ["planner", "coder", "critic"]
tokens = st.integers(0, 50_000)
residents = st.builds(Resident, tokens, tokens, tokens)


def snapshot(engine: str, version: int = 1, at: float = 0.0, **fields: Any) -> EngineSnapshot:
    """An idle engine of 10,000 tokens, but for what is said."""
    return EngineSnapshot(engine, version, at, **{"capacity_tokens": 10_000} | fields)


def snapshots(version: int = 1, at: float = 0.0) -> st.SearchStrategy[EngineSnapshot]:
    """Of any engine, in any state."""
    return st.builds(
        EngineSnapshot,
        st.sampled_from(ENGINES),
        st.just(version),
        st.just(at),
        st.dictionaries(st.sampled_from(WORKFLOWS), residents, max_size=4),
        st.dictionaries(st.sampled_from(AGENTS), tokens, max_size=3),
        tokens,
        st.integers(0, 64),
        tokens,
        st.integers(0, 50_000),
        st.booleans(),
    )
