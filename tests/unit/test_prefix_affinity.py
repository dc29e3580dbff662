"""The comparison with Ray's prefix router is fair: the same prompts go where Ray's own tree would send them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.benchmark.routers.prefix_affinity import PrefixAffinity
from serving.routing.base import RoutedCall

ENGINES = ["a", "b", "c"]
MATCH_RATE = 0.1
# Prompts of pieces of one character each, which Ray's tree takes as text.
PROMPTS = st.lists(st.text("xyz", max_size=12), max_size=25)


def rays_tree() -> Any:
    """Ray's own, loaded from its file: the packages around it want an engine that is not here."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "llm/_internal/serve/routing_policies/prefix_aware/prefix_tree.py"
    loader = importlib.util.spec_from_file_location("rays_prefix_tree", path)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module.PrefixTree


@pytest.fixture(scope="module")
def tree_type() -> Any:
    return rays_tree()


@settings(max_examples=300, deadline=None)
@given(PROMPTS, st.lists(st.tuples(st.integers(0, 24), st.sampled_from(ENGINES)), max_size=2))
def test_prompts_go_where_rays_tree_would_send_them(
    tree_type: Any, prompts: list[str], losses: list[tuple[int, str]]
) -> None:
    router, tree, engines = PrefixAffinity(match_rate_threshold=MATCH_RATE), tree_type(), list(ENGINES)
    router.set_engines(engines)
    tree.add_tenants(engines, 0.0)
    for now, prompt in enumerate(prompts):
        for at, lost in losses:
            if at == now and lost in engines and len(engines) > 1:
                engines.remove(lost)
                router.drop_engine(lost)
                tree.remove_tenants([lost])
        matched, having = tree.prefix_match(prompt, engines)
        follows = bool(prompt) and len(matched) / len(prompt) >= MATCH_RATE
        wanted = having if follows else tree.get_smallest_tenants()
        decision = router.route(
            RoutedCall(f"w{now}", "agent", len(prompt), pieces=tuple((one, 1) for one in prompt)), {}, now
        )
        assert decision is not None
        assert decision.engine == min(wanted)
        assert decision.why == ("anchor" if follows else "least-loaded")
        tree.insert(prompt, decision.engine, float(now))
