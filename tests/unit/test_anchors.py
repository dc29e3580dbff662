"""Anchors found by watching prompts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.anchors import MAX_AGENTS, MAX_TOKENS, MIN_TOKENS, WORKFLOWS, AnchorBook

ANCHOR = list(range(100, 100 + 2 * MIN_TOKENS))


def told(book: AnchorBook) -> dict[str, list[int]]:
    return {agent: np.frombuffer(ids, "<i4").tolist() for agent, ids in book.untold(100)}


class TestAnchors:
    @given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=WORKFLOWS, max_size=8))
    def test_it_is_what_the_prompts_of_different_workflows_have_in_common(self, tails: list[list[int]]) -> None:
        book = AnchorBook()
        for number, tail in enumerate(tails):
            book.answered("coder", f"w{number}", [*ANCHOR, 1000 + number, *tail])
        assert told(book) == {"coder": ANCHOR}
        assert told(book) == {}

    def test_it_is_not_believed_before_a_few_workflows_showed_it(self) -> None:
        book = AnchorBook()
        for number in range(WORKFLOWS - 1):
            book.answered("coder", f"w{number}", [*ANCHOR, number])
        for number in range(10):
            book.answered("coder", f"w{WORKFLOWS - 2}", [*ANCHOR, number])
        assert told(book) == {}

    def test_a_new_system_prompt_begins_anew(self) -> None:
        book = AnchorBook()
        for number in range(WORKFLOWS):
            book.answered("coder", f"w{number}", [*ANCHOR, 1000 + number])
        told(book)
        other = [7, *ANCHOR]
        for number in range(WORKFLOWS):
            book.answered("coder", f"v{number}", [*other, 1000 + number])
        assert told(book) == {"coder": other}

    def test_short_prompts_and_unknown_ones_are_no_anchors(self) -> None:
        book = AnchorBook()
        for number in range(10):
            book.answered("coder", f"w{number}", ANCHOR[: MIN_TOKENS - 1])
            book.answered("tester", f"w{number}", ())
        assert told(book) == {}

    def test_it_is_bounded_and_told_again_when_asked(self) -> None:
        book = AnchorBook()
        for agent in range(3 * MAX_AGENTS):
            for number in range(WORKFLOWS):
                book.answered(f"a{agent}", f"w{number}", list(range(MAX_TOKENS + 50)))
        first = told(book)
        assert len(first) == MAX_AGENTS
        assert all(len(ids) == MAX_TOKENS for ids in first.values())
        book.tell_all()
        assert told(book) == first
