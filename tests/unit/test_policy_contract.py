"""What every eviction policy promises, whatever it is clever about: the contract in cache_actor/policies/base.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.policies import VALUE_ONE, EvictionPolicy, NodeFacts, make_policy, policy_names
from cache_actor.policies.base import Key, clock_period
from cache_actor.policies.reuse_table import PRIOR

# Besides its defaults, which every policy is tested with.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "lifecycle": [{"strict": True}],
    "lookahead": [{"strict": True, "unknown_value": 0.0}, {"unknown_value": 1000}],
    "steps": [{"unknown_value": 0.0}, {"unknown_value": 1.0}],
    "survival": [
        {"form": "multiplicative"},
        {"form": "multiplicative", "anchors_only": False, "delta": 0.0, "unknown_tokens": 1},
        {"anchors_only": False, "weight": 0.0, "decay_per_s": 3.0, "refresh_s": 0.1},
    ],
    "reuse": [{"strict": True, "features": ""}],
    "ttl": [{"refresh_s": 0.1}, {"refresh_s": 3600}],
}

CLOCKS = st.floats(0, 2e9)
ACCESSES = st.integers(0, 1 << 50).map(float)


@st.composite
def facts(draw: st.DrawFn, known: bool | None = None, retired: bool | None = None) -> NodeFacts:
    is_retired = draw(st.booleans()) if retired is None else retired
    is_known = not is_retired and (draw(st.booleans()) if known is None else known)
    small = st.sampled_from([0, 1, VALUE_ONE // 2, VALUE_ONE, 3 * VALUE_ONE])
    return NodeFacts(
        retired=is_retired,
        retirement=draw(st.integers(1, 1000)) if is_retired else 0,
        shared=draw(st.booleans()),
        known=is_known,
        value=draw(small | st.integers(0, 1 << 52)) if is_known else 0,
        tokens=draw(st.integers(1, 100_000)),
        last_access=draw(ACCESSES),
        touched_at=draw(CLOCKS),
        chance=draw(st.floats(0, 1)) if is_known else PRIOR,
    )


def many(nodes: st.SearchStrategy[NodeFacts], least: int = 2) -> st.SearchStrategy[list[NodeFacts]]:
    return st.lists(nodes, min_size=least, max_size=8, unique_by=lambda node: node.last_access)


def victims(nodes: list[NodeFacts], parents: list[int], key: Callable[[NodeFacts], Key]) -> list[int]:
    """The order in which a tree loses its nodes, leaves first: node i hangs below node parents[i] < i, 0 is on top."""
    left, order = set(range(len(nodes))), []
    while left:
        leaves = left - {parents[node] for node in left if node > 0}
        order.append(min(leaves, key=lambda leaf: key(nodes[leaf])))
        left.remove(order[-1])
    return order


def cases() -> list[Any]:
    return [
        pytest.param(make_policy(name, parameters), id=f"{name}-{number}")
        for name in policy_names()
        for number, parameters in enumerate([{}, *PARAMETERS.get(name, [])])
    ]


@pytest.mark.parametrize("policy", cases())
class TestPolicyContract:
    @given(node=facts(), now=CLOCKS, other=CLOCKS)
    def test_the_key_depends_on_the_arguments_alone(
        self, policy: EvictionPolicy, node: NodeFacts, now: float, other: float
    ) -> None:
        before, key = replace(node), policy.key(node, now)
        policy.key(node, other)
        assert policy.key(replace(node), now) == key
        assert node == before

    @given(nodes=many(facts()), now=CLOCKS)
    def test_any_two_nodes_compare_and_ties_end_in_the_last_access(
        self, policy: EvictionPolicy, nodes: list[NodeFacts], now: float
    ) -> None:
        keys = [policy.key(node, now) for node in nodes]
        for node, key in zip(nodes, keys, strict=True):
            assert not any(math.isnan(part) for part in key)
            assert key[-1] == node.last_access
            assert key < policy.key(replace(node, last_access=node.last_access + 1), now)
        assert all((one < two) != (two < one) for i, one in enumerate(keys) for two in keys[:i])

    @given(nodes=many(facts(known=False, retired=False)), now=CLOCKS, data=st.data())
    def test_neutral_input_evicts_what_lru_evicts(
        self, policy: EvictionPolicy, nodes: list[NodeFacts], now: float, data: st.DataObject
    ) -> None:
        parents = [data.draw(st.integers(0, max(0, node - 1))) for node in range(len(nodes))]
        lru = victims(nodes, parents, lambda node: (node.last_access,))
        assert victims(nodes, parents, lambda node: policy.key(node, now)) == lru

    @given(nodes=many(facts()), now=CLOCKS)
    def test_retired_nodes_go_first_in_the_order_in_which_they_retired(
        self, policy: EvictionPolicy, nodes: list[NodeFacts], now: float
    ) -> None:
        if policy.name == "lru":
            assert sorted(nodes, key=lambda node: policy.key(node, now)) == sorted(nodes, key=lambda n: n.last_access)
            return
        order = sorted(nodes, key=lambda node: policy.key(node, now))
        retired = [node for node in order if node.retired]
        assert order[: len(retired)] == retired
        assert retired == sorted(retired, key=lambda node: (node.retirement, node.last_access))

    @given(node=facts(known=True, retired=False), more=st.integers(0, 1 << 52), now=CLOCKS)
    def test_a_higher_value_never_sorts_lower(
        self, policy: EvictionPolicy, node: NodeFacts, more: int, now: float
    ) -> None:
        assert policy.key(node, now) <= policy.key(replace(node, value=node.value + more), now)

    @given(nodes=many(facts()), now=CLOCKS, part=st.floats(0, 1))
    def test_the_order_is_steady_until_it_says_it_changes(
        self, policy: EvictionPolicy, nodes: list[NodeFacts], now: float, part: float
    ) -> None:
        end = policy.changes_at(now)
        assert end > now
        last = math.nextafter(min(end, now + 1e6), 0)
        order = sorted(nodes, key=lambda node: policy.key(node, now))
        for later in (min(last, now + part * (last - now)), last):
            assert order == sorted(nodes, key=lambda node: policy.key(node, later))


@given(now=CLOCKS, period_s=st.floats(0.001, 3600), part=st.floats(0, 1))
def test_a_clock_period_is_the_same_for_every_moment_in_it(now: float, period_s: float, part: float) -> None:
    start, end = clock_period(now, period_s)
    assert start <= now < end
    for moment in (start, math.nextafter(end, 0), min(math.nextafter(end, 0), start + part * (end - start))):
        assert clock_period(moment, period_s) == (start, end)
    assert clock_period(end, period_s)[0] == end
