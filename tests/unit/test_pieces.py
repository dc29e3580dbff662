"""Victims that leave in part: no more goes than is asked for, and the books are right afterwards."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from serving.benchmark.bare_cache import BareCache
from serving.sglang_plugin.integrity import check_integrity
from serving.sglang_plugin.pieces import kept

PROMPT = list(range(1000, 1080))


class TestKept:
    @given(
        pages=st.integers(1, 500), wanted=st.integers(-50, 3000), smallest=st.integers(0, 300), page=st.integers(1, 64)
    )
    def test_whole_pages_stay_and_no_more_leaves_than_must(
        self, pages: int, wanted: int, smallest: int, page: int
    ) -> None:
        tokens = pages * page
        staying = kept(tokens, wanted, smallest, page)
        leaving = tokens - staying
        assert staying % page == 0
        assert 0 <= staying < tokens
        if staying:
            assert 0 < wanted <= leaving
            assert min(staying, leaving) >= smallest
            assert leaving < max(wanted, smallest) + page
        elif wanted > 0:  # another page more in the cache would be too little of a piece, or too little room
            assert tokens - max(wanted, smallest) < max(smallest, 1) + page


class TestInTheCache:
    @pytest.mark.parametrize("host_tokens", [0, 300])
    def test_the_beginning_of_a_victim_stays_and_is_found(self, host_tokens: int) -> None:
        bare = BareCache(200, "reuse", host_tokens=host_tokens)
        bare.call(PROMPT, "w")
        assert bare.evict(30) == 30
        assert bare.cached(PROMPT) == 50
        check_integrity(bare.cache)

    @pytest.mark.parametrize(
        ("policy", "parameters"), [("lru", {}), ("lookahead", {}), ("reuse", {"piecewise": False})]
    )
    def test_others_evict_whole_nodes_as_sglang_does(self, policy: str, parameters: dict[str, bool]) -> None:
        bare = BareCache(200, policy, **parameters)
        bare.call(PROMPT, "w")
        assert bare.evict(30) == 80

    def test_on_the_host_too_no_more_leaves_than_is_asked_for(self) -> None:
        bare = BareCache(200, "reuse", host_tokens=300)
        bare.call(PROMPT, "w")
        bare.evict(80)
        assert bare.cache.evict_host(30) == 30
        check_integrity(bare.cache)
        assert bare.match(PROMPT).host_hit_length == 50

    def test_pages_stay_whole(self) -> None:
        bare = BareCache(160, "reuse", page_size=16)
        bare.call(PROMPT, "w")
        assert bare.evict(20) == 32
        assert bare.cached(PROMPT) == 48

    def test_what_left_in_pieces_comes_back_as_one(self) -> None:
        """Else a prompt that is lost and computed again and again would fall into ever more nodes."""
        bare = BareCache(200, "reuse")
        bare.call(PROMPT, "w")
        for _ in range(4):
            bare.evict(10)
        assert bare.call(PROMPT, "w") == 40
        tree = bare.cache.tree_core
        assert sorted(len(node.key) for node in tree._node_arena.values() if node.parent is not None) == [40, 40]

    def test_a_beginning_is_no_more_recent_than_the_whole_was(self) -> None:
        bare = BareCache(200, "reuse")
        bare.call(PROMPT, "w")
        other = [*range(2000, 2080)]
        bare.call(other, "w")
        bare.evict(30)
        bare.evict(30)
        assert (bare.cached(PROMPT), bare.cached(other)) == (20, 80)
