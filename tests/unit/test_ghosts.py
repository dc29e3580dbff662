"""Regret counts exactly what was in the tree before, however the tree cut it."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
from hypothesis import given, settings
from sglang.srt.mem_cache.radix_cache import RadixKey

from serving.benchmark.bare_cache import BareCache
from serving.sglang_plugin.entries import RETURNED
from serving.sglang_plugin.ghosts import Ghosts


class Node:
    def __init__(self, parent: Node | None, tokens: list[int], namespace: str | None = None) -> None:
        self.parent = parent
        self.key = RadixKey(array("q", tokens), namespace)


ROOT = Node(None, [])
TOKENS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30)


class TestGhosts:
    @given(TOKENS, st.data())
    def test_what_was_lost_in_pieces_is_known_in_other_pieces(self, tokens: list[int], data: st.DataObject) -> None:
        cut = data.draw(st.integers(0, len(tokens)))
        ghosts = Ghosts()
        upper = Node(ROOT, tokens[:cut]) if cut else ROOT
        if cut < len(tokens):
            ghosts.lost(Node(upper, tokens[cut:]))
        if cut:
            ghosts.lost(upper)
        assert ghosts.came(Node(ROOT, [*tokens, 7, 7])) == len(tokens)
        assert ghosts.came(Node(ROOT, tokens)) == 0, "each loss is regretted once"

    @given(TOKENS)
    def test_what_only_begins_alike_is_no_regret(self, tokens: list[int]) -> None:
        ghosts = Ghosts()
        ghosts.lost(Node(ROOT, [5, *tokens]))
        assert ghosts.came(Node(ROOT, [5, *tokens[:-1], tokens[-1] + 1])) == 0
        assert ghosts.came(Node(ROOT, [6, *tokens])) == 0

    def test_part_of_what_was_lost_counts_as_a_part(self) -> None:
        ghosts = Ghosts()
        ghosts.lost(Node(ROOT, [1, 2, 3, 4]))
        assert ghosts.came(Node(ROOT, [1, 2])) == 2

    def test_name_spaces_do_not_mix(self) -> None:
        ghosts = Ghosts()
        ghosts.lost(Node(ROOT, [1, 2], "a"))
        assert ghosts.came(Node(ROOT, [1, 2], "b")) == 0
        assert ghosts.came(Node(ROOT, [1, 2], "a")) == 2

    def test_the_oldest_are_forgotten(self) -> None:
        ghosts = Ghosts(limit=3)
        for i in range(5):
            ghosts.lost(Node(ROOT, [i]))
        assert len(ghosts) == 3
        assert [ghosts.came(Node(ROOT, [i])) for i in range(5)] == [0, 0, 1, 1, 1]


class TestInTheCache:
    @settings(max_examples=30)
    @given(st.lists(st.lists(st.sampled_from([1, 2]), min_size=4, max_size=20), min_size=1, max_size=12))
    def test_regret_is_what_a_second_pass_computes_again(self, prompts: list[list[int]]) -> None:
        bare = BareCache(400)
        for prompt in prompts:
            bare.call(prompt, "w")
        assert bare.cache.figures()["counters"].get("regret", 0) == 0
        bare.evict(400)
        computed = sum(bare.call(prompt, "w") for prompt in prompts)
        assert bare.cache.figures()["counters"]["regret"] == computed

    def test_what_comes_from_storage_is_no_regret_and_known_as_it_was(self) -> None:
        prompt = list(range(100, 140))
        bare = BareCache(64, "reuse", host_tokens=64)
        bare.call(prompt, "w")
        bare.evict(64)
        bare.cache.evict_host(64)
        assert not list(bare.cache.ledger.owners["w"].nodes())
        assert bare.fetch(prompt) == len(prompt)
        assert bare.call(prompt, "w") == 0
        assert bare.cache.figures()["counters"].get("regret", 0) == 0
        nodes = list(bare.cache.ledger.owners["w"].nodes())
        assert sum(len(node.key) for node in nodes) == len(prompt)
        assert all(node.entry.uses > RETURNED for node in nodes)
