"""Which known conversation a request extends."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.conversations import Conversation, ConversationIndex, conversation_of

SYSTEM = {"role": "system", "content": "You plan."}
TOOLS = [{"type": "function", "function": {"name": "search"}}]
BEGINNING = "b" * 64


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(*messages: Any, **fields: Any) -> Conversation:
    return conversation_of({"messages": list(messages), **fields})


def completion(prompt: Any) -> Conversation:
    return conversation_of({"prompt": prompt})


@pytest.fixture
def index() -> ConversationIndex:
    return ConversationIndex(10_000)


class TestChats:
    def test_an_extension_is_found(self, index: ConversationIndex) -> None:
        index.remember(chat(SYSTEM, user("1")), "w")
        assert index.find(chat(SYSTEM, user("1"), answer("a"), user("2"))) == "w"

    def test_the_longest_beginning_wins(self, index: ConversationIndex) -> None:
        index.remember(chat(user("1")), "short")
        index.remember(chat(user("1"), answer("a"), user("2")), "long")
        assert index.find(chat(user("1"), answer("a"), user("2"), answer("b"), user("3"))) == "long"
        assert index.find(chat(user("1"), answer("other"), user("2"))) == "short"

    @pytest.mark.parametrize(
        "other",
        [
            chat(user("1")),
            chat(SYSTEM),
            chat(SYSTEM, user("2"), answer("a")),
            chat(user("1"), SYSTEM, answer("a")),
            chat(SYSTEM, user("1 and more"), answer("a")),
            chat(SYSTEM, {"role": "user", "content": ["1"]}, answer("a")),
            chat(),
        ],
        ids=["no system", "shorter", "other text", "other order", "same characters", "other type", "empty"],
    )
    def test_what_is_no_extension_is_not_found(self, index: ConversationIndex, other: Conversation) -> None:
        index.remember(chat(SYSTEM, user("1")), "w")
        assert index.find(other) is None

    def test_a_retry_of_an_answered_chat_is_the_same_workflow(self, index: ConversationIndex) -> None:
        request = chat(user("1"), answer("a"), user("2"))
        index.remember(chat(user("1")), "w")
        index.remember(request, "w")
        assert [index.find(request) for _ in range(3)] == ["w"] * 3

    def test_a_chat_with_a_tool_result_counts_as_answered(self, index: ConversationIndex) -> None:
        request = chat(user("1"), {"role": "tool", "content": "42"})
        index.remember(request, "w")
        assert index.find(request) == "w"

    def test_two_namesakes_stay_two(self, index: ConversationIndex) -> None:
        first = chat(SYSTEM, user("1"))
        assert index.find(first) is None
        index.remember(first, "one")
        assert index.find(first) is None
        index.remember(first, "two")
        found = [index.find(chat(SYSTEM, user("1"), answer(text))) for text in ("a", "b")]
        assert found == ["one", "two"]

    def test_a_conversation_may_branch(self, index: ConversationIndex) -> None:
        root = chat(user("1"))
        index.remember(root, "w")
        for text in ("a", "b", "c"):
            branch = chat(user("1"), answer(text), user("2"))
            assert index.find(branch) == "w"
            index.remember(branch, "w")
        assert index.find(chat(user("1"), answer("b"), user("2"), answer("x"), user("3"))) == "w"

    def test_other_tools_are_another_conversation(self, index: ConversationIndex) -> None:
        index.remember(chat(user("1"), tools=TOOLS), "w")
        assert index.find(chat(user("1"), answer("a"), tools=TOOLS)) == "w"
        assert index.find(chat(user("1"), answer("a"))) is None
        assert index.find(chat(user("1"), answer("a"), tools=[*TOOLS, *TOOLS])) is None

    def test_the_order_of_keys_does_not_matter(self, index: ConversationIndex) -> None:
        index.remember(chat({"role": "user", "content": "1"}), "w")
        assert index.find(chat({"content": "1", "role": "user"}, answer("a"))) == "w"

    @given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
    def test_found_if_and_only_if_it_is_a_proper_beginning(self, known: list[str], asked: list[str]) -> None:
        index = ConversationIndex(10)
        index.remember(chat(*map(user, known)), "w")
        extends = len(asked) > len(known) and asked[: len(known)] == known
        assert (index.find(chat(*map(user, asked))) == "w") is extends


class TestAnchor:
    def test_it_depends_on_leading_system_messages_and_tools_alone(self) -> None:
        developer = {"role": "developer", "content": "Be brief."}
        anchor = chat(SYSTEM, developer, user("1"), tools=TOOLS).anchor
        assert anchor is not None
        assert chat(SYSTEM, developer, user("2"), answer("a"), tools=TOOLS).anchor == anchor
        assert chat(SYSTEM, developer, user("1"), SYSTEM, tools=TOOLS).anchor == anchor
        assert chat(SYSTEM, developer, tools=TOOLS, model="m", temperature=1).anchor == anchor
        others = [
            chat(SYSTEM, user("1"), developer, tools=TOOLS),
            chat(developer, SYSTEM, user("1"), tools=TOOLS),
            chat(SYSTEM, developer, user("1")),
            chat(user("1"), tools=TOOLS),
        ]
        assert len({anchor, *(other.anchor for other in others)}) == 5

    def test_without_system_message_and_tools_there_is_none(self) -> None:
        assert chat(user("1"), SYSTEM).anchor is None
        assert chat(user("1"), tools=[]).anchor is None
        assert completion("x" * 100).anchor is None

    def test_tools_alone_are_an_anchor(self) -> None:
        assert chat(user("1"), tools=TOOLS).anchor == chat(user("2"), tools=TOOLS).anchor is not None


class TestTexts:
    def test_an_extension_is_found(self, index: ConversationIndex) -> None:
        index.remember(completion(BEGINNING + " one"), "w")
        assert index.find(completion(BEGINNING + " one two")) == "w"

    @pytest.mark.parametrize("text", [BEGINNING + " one", BEGINNING + " on", BEGINNING, BEGINNING + " two and more"])
    def test_only_a_proper_beginning_counts(self, index: ConversationIndex, text: str) -> None:
        index.remember(completion(BEGINNING + " one"), "w")
        assert index.find(completion(text)) is None

    def test_the_longest_beginning_wins(self, index: ConversationIndex) -> None:
        for workflow, text in (("long", " one two"), ("short", " one"), ("other", " 123456789")):
            index.remember(completion(BEGINNING + text), workflow)
        assert index.find(completion(BEGINNING + " one two three")) == "long"
        assert index.find(completion(BEGINNING + " one and more")) == "short"

    def test_a_beginning_shorter_than_64_characters_is_no_evidence(self, index: ConversationIndex) -> None:
        index.remember(completion("Q"), "w")
        assert len(index) == 0
        assert index.find(completion("Q" + BEGINNING)) is None
        index.remember(completion(BEGINNING), "w")
        assert index.find(completion(BEGINNING + "Q")) == "w"

    @pytest.mark.parametrize("prompt", ["", None, 7, ["a" * 100], [1, 2], {"a": 1}])
    def test_what_is_not_one_text_has_no_conversation(self, index: ConversationIndex, prompt: Any) -> None:
        assert completion(prompt) == Conversation()
        index.remember(completion(prompt), "w")
        assert index.find(completion(prompt)) is None

    @given(st.lists(st.text("ab", max_size=5), min_size=1, max_size=8), st.text("ab", max_size=7))
    def test_it_is_the_longest_proper_beginning_by_brute_force(self, known: list[str], asked: str) -> None:
        index = ConversationIndex(100)
        for text in known:
            index.remember(completion(BEGINNING + text), text + "!")
        beginnings = [text for text in known if asked.startswith(text) and asked != text]
        expected = max(beginnings, key=len) + "!" if beginnings else None
        assert index.find(completion(BEGINNING + asked)) == expected

    def test_2000_texts_that_begin_alike_are_told_apart(self, index: ConversationIndex) -> None:
        texts = [f"{BEGINNING} {n} " + "x" * n for n in range(2000)]  # 2,000 lengths, too
        for n, text in enumerate(texts):
            index.remember(completion(text), f"w{n}")
        for n in range(0, 2000, 97):
            assert index.find(completion(texts[n] + "more")) == f"w{n}"

    def test_a_beginning_full_of_long_texts_still_learns_short_ones(self, index: ConversationIndex) -> None:
        for n in range(3000):
            index.remember(completion(BEGINNING + "y" * (100 + n)), "long")
        index.remember(completion(BEGINNING + "short"), "short")
        assert index.find(completion(BEGINNING + "short and more")) == "short"


class TestLimit:
    @pytest.mark.parametrize("make", [lambda n: chat(user(str(n))), lambda n: completion(f"{BEGINNING} {n:04}")])
    def test_the_oldest_is_forgotten(self, make: Any) -> None:
        index = ConversationIndex(3)
        for n in range(4):
            index.remember(make(n), f"w{n}")
        index.remember(make(1), "w1")
        index.remember(make(4), "w4")
        assert len(index) == 3
        chats = [chat(user(str(n)), answer("a")) for n in range(5)]
        texts = [completion(f"{BEGINNING} {n:04} more") for n in range(5)]
        found = [index.find(request) for request in (chats if make(0).chain else texts)]
        assert found == [None, "w1", None, "w3", "w4"]

    def test_memory_is_bounded_whatever_is_remembered(self) -> None:
        index = ConversationIndex(50)

        def fill(start: int) -> int:
            for n in range(start, start + 2000):
                index.remember(completion(f"{n % 7}{BEGINNING}" + "z" * n), f"w{n}")
                index.remember(completion(f"{n:064}"), f"w{n}")
                index.remember(chat(user("the same")), f"w{n}")
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before, after = fill(0), fill(2000)
        finally:
            tracemalloc.stop()
        assert len(index) == 50
        assert after - before < 20_000


class TestMalformed:
    @pytest.mark.parametrize(
        "messages",
        ["text", b"bytes", 7, None, {}, [None], ["text"], [[]], [{"role": []}], [{"role": {}}], [{"role": 1}], [1.5]],
    )
    def test_malformed_messages_do_not_raise(self, index: ConversationIndex, messages: Any) -> None:
        conversation = conversation_of({"messages": messages, "tools": "none"})
        index.remember(conversation, "w")
        index.find(conversation)

    def test_messages_too_deep_for_json_have_no_conversation(self) -> None:
        nested: Any = []
        for _ in range(5000):
            nested = [nested]
        assert conversation_of({"messages": [nested]}) == Conversation()

    _json = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content"]), inner),
        max_leaves=10,
    )

    @given(messages=_json, tools=_json, prompt=_json)
    def test_any_body_can_be_remembered_and_looked_for(self, messages: Any, tools: Any, prompt: Any) -> None:
        index = ConversationIndex(5)
        for body in ({"messages": messages, "tools": tools}, {"prompt": prompt}):
            conversation = conversation_of(body)
            index.remember(conversation, "w")
            assert index.find(conversation) in (None, "w")
            assert conversation_of(body) == conversation

    def test_new_workflows_have_names_of_their_own(self) -> None:
        names = {ConversationIndex.new_workflow() for _ in range(100)}
        assert len(names) == 100
        assert json.loads(json.dumps(sorted(names)))[0].startswith("auto-")
