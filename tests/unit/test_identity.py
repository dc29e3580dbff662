"""Request -> identity: every source, their order, cleaning, and that no input can break it."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ways_to_name import SOURCES, merged

from cache_actor.messages import RequestIdentity
from serving.config import VENDOR_HEADERS, IdentityConfig, SessionHeaders
from serving.conversations import ConversationIndex
from serving.errors import ApiError
from serving.identity import MAX_PRIORITY, Identified, identify
from serving.naming import MAX_ID_CHARACTERS, clean_id, parse_baggage

# Each way to name an agent, in the same order.
AGENTS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("a-header", {"x-agent-name": "a-header"}, {}),
    ("a-codex", {"x-openai-subagent": "a-codex"}, {}),
    ("a-opencode", {"x-opencode-subagent": "a-opencode"}, {}),
    ("a-baggage", {"baggage": "gen_ai.agent.name=a-baggage"}, {}),
    ("a-metadata", {}, {"metadata": {"agent": "a-metadata"}}),
]
CHAT = {"messages": [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Go."}]}


def identified(
    headers: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    config: IdentityConfig | None = None,
    conversations: ConversationIndex | None = None,
) -> Identified:
    return identify(headers or {}, body or {}, config or IdentityConfig(), conversations or ConversationIndex(100))


def identity_of(
    headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, config: IdentityConfig | None = None
) -> RequestIdentity:
    return identified(headers, body, config).identity


class TestOrderOfSources:
    @pytest.mark.parametrize(("source", "headers", "body"), SOURCES, ids=[source for source, _, _ in SOURCES])
    def test_each_source_alone_names_the_workflow(
        self, source: str, headers: dict[str, str], body: dict[str, Any]
    ) -> None:
        identity = identity_of(headers, body)
        assert identity.source == source
        assert identity.workflow.startswith("w-")

    @pytest.mark.parametrize("position", range(len(SOURCES)), ids=[source for source, _, _ in SOURCES])
    def test_a_source_wins_over_all_that_come_after_it(self, position: int) -> None:
        source, headers, body = SOURCES[position]
        identity = identity_of(*merged(SOURCES[position:]))
        assert identity.source == source
        assert identity.workflow == identity_of(headers, body).workflow

    @pytest.mark.parametrize("position", range(len(AGENTS)), ids=[name for name, _, _ in AGENTS])
    def test_agents_are_looked_for_in_the_same_order(self, position: int) -> None:
        assert identity_of(*merged(AGENTS[position:])).agent == AGENTS[position][0]

    @pytest.mark.parametrize(
        ("workflow", "agent"),
        [
            pytest.param(workflow, agent, id=f"{workflow[0]}-{agent[0]}")
            for workflow in SOURCES
            for agent in AGENTS
            if not (workflow[1].keys() & agent[1].keys() or workflow[2].keys() & agent[2].keys())
        ],
    )
    def test_workflow_and_agent_may_come_from_different_sources(self, workflow: Any, agent: Any) -> None:
        headers, body = {**agent[1], **workflow[1]}, {**agent[2], **workflow[2]}
        identity = identity_of(headers, body)
        assert (identity.source, identity.agent) == (workflow[0], agent[0])

    def test_parent_and_final_are_found_each_for_itself(self) -> None:
        headers = {"x-workflow-id": "w", "x-parent-session-id": "p", "x-dynamo-session-final": "true"}
        assert identity_of(headers) == RequestIdentity("w", "default", parent="p", final=True, source="header")

    def test_an_explicit_false_is_a_hit(self) -> None:
        assert not identity_of({"x-workflow-final": "false", "x-session-final": "true"}).final

    def test_an_empty_value_is_no_hit(self) -> None:
        assert identity_of({"x-workflow-id": " \t", "x-session-id": "s"}).workflow == "s"

    def test_without_any_name_the_agent_is_the_anchor_and_the_workflow_is_new(self) -> None:
        first, second = identified(body=CHAT), identified(body=CHAT)
        assert first.identity.source == "inferred"
        assert first.anchor is not None
        assert first.identity.agent == second.identity.agent == f"agent-{first.anchor[:10]}"
        assert first.identity.workflow != second.identity.workflow

    def test_without_name_and_anchor_the_agent_is_the_default(self) -> None:
        assert identity_of(body={"prompt": "hello"}).agent == "default"

    def test_an_unnamed_request_joins_the_conversation_it_extends(self) -> None:
        conversations = ConversationIndex(100)
        first = identified(body=CHAT, conversations=conversations)
        conversations.remember(first.conversation, first.identity.workflow)
        longer = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "1."}, {"role": "user"}]}
        assert identified(body=longer, conversations=conversations).identity.workflow == first.identity.workflow

    def test_a_refused_request_leaves_the_conversations_as_they_were(self) -> None:
        conversations = ConversationIndex(100)
        for workflow in ("one", "two"):
            conversations.remember(identified(body=CHAT).conversation, workflow)
        longer = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "1."}, {"role": "user"}]}
        with pytest.raises(ApiError):
            identified({"x-workflow-priority": "high"}, longer, conversations=conversations)
        assert identified(body=longer, conversations=conversations).identity.workflow == "one"


class TestVendors:
    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({"x-claude-code-session-id": "s"}, ("s", None)),
            ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "c"}, ("c", "s")),
            (
                {
                    "x-claude-code-session-id": "s",
                    "x-claude-code-agent-id": "c",
                    "x-claude-code-parent-agent-id": "p",
                },
                ("c", "p"),
            ),
            (
                {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "c", "x-claude-code-parent-agent-id": " "},
                ("c", "s"),
            ),
            ({"x-claude-code-agent-id": "c"}, ("c", None)),
            ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": " "}, ("s", None)),
        ],
        ids=["session", "child", "nested", "blank parent", "child alone", "blank child"],
    )
    def test_claude_code_sub_agent_is_a_child_of_its_parent_agent_or_session(
        self, headers: dict[str, str], expected: tuple[str, str | None]
    ) -> None:
        identity = identity_of(headers)
        assert (identity.workflow, identity.parent) == expected
        assert identity.source == "vendor:x-claude-code-session-id"

    @pytest.mark.parametrize("session", ["thread-id", "session_id"])
    def test_codex(self, session: str) -> None:
        headers = {session: "s", "x-codex-parent-thread-id": "p", "x-openai-subagent": "review"}
        assert identity_of(headers) == RequestIdentity("s", "review", parent="p", source=f"vendor:{session}")

    def test_opencode(self) -> None:
        headers = {"x-opencode-session": "s", "x-opencode-parent-session": "p", "x-opencode-subagent": "explore"}
        assert identity_of(headers) == RequestIdentity("s", "explore", parent="p", source="vendor:x-opencode-session")

    def test_dynamo(self) -> None:
        headers = {"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p", "x-dynamo-session-final": "1"}
        expected = RequestIdentity("s", "default", parent="p", final=True, source="vendor:x-dynamo-session-id")
        assert identity_of(headers) == expected

    def test_vendors_of_the_config_replace_the_built_in_ones_and_ignore_case(self) -> None:
        names = SessionHeaders(session="X-Acme-Run", child="X-Acme-Step", final="X-Acme-Last", agent="X-Acme-Role")
        config = IdentityConfig(vendor_headers=(names,))
        headers = {"x-acme-run": "r", "x-acme-step": "s", "x-acme-last": "yes", "x-acme-role": "cook"}
        expected = RequestIdentity("s", "cook", parent="r", final=True, source="vendor:X-Acme-Run")
        assert identity_of(headers, config=config) == expected
        assert identity_of({"x-dynamo-session-id": "s"}, config=config).source == "inferred"


class TestBaggage:
    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            ("a=1,b=2", {"a": "1", "b": "2"}),
            ("a=caf%C3%A9%20x%2Cy", {"a": "café x,y"}),
            ("a=1;ttl=3;flag , b = 2 ", {"a": "1", "b": "2"}),
            ("a=1,a=2", {"a": "1"}),
            ("A=x=y", {"a": "x=y"}),
            ("lonely,=x,,;p=1,a=1", {"a": "1"}),
            ("a=%FF%zz", {"a": "\ufffd%zz"}),
            ("", {}),
        ],
    )
    def test_members(self, header: str, expected: dict[str, str]) -> None:
        assert parse_baggage(header) == expected

    def test_it_names_workflow_and_agent(self) -> None:
        header = "x=1,gen_ai.agent.name=der%20Koch;p=1,gen_ai.conversation.id=w%0A7"
        assert identity_of({"baggage": header}) == RequestIdentity("w7", "der Koch", source="baggage")


class TestIds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("  a b\t", "a b"),
            ("a\x00b\r\nc\x7f\x85", "abc"),
            ("e\u0301", "é"),
            ("e\u200d\u0301", "é"),
            ("\u202ea\ud800", "a"),
            ("a" * 128, "a" * 128),
            (7, "7"),
            (0, "0"),
            ("", None),
            ("\n \u200b", None),
            *((wrong, None) for wrong in (None, True, False, 1.5, b"a", [], ["a"], {}, {"a": 1})),
        ],
    )
    def test_cleaning(self, value: Any, expected: str | None) -> None:
        assert clean_id(value) == expected

    def test_two_long_ids_stay_two_and_keep_their_head(self) -> None:
        one, two = clean_id("a" * 500 + "1"), clean_id("a" * 500 + "2")
        assert one
        assert two
        assert one != two
        assert one.startswith("a" * 100)
        assert len(one) == len(two) == MAX_ID_CHARACTERS

    @given(st.text(st.characters(), max_size=300))
    def test_cleaning_twice_is_cleaning_once(self, text: str) -> None:
        cleaned = clean_id(text)
        assert cleaned is None or clean_id(cleaned) == cleaned
        assert cleaned is None or unicodedata.is_normalized("NFC", cleaned)

    def test_header_bytes_that_are_utf_8_are_decoded(self) -> None:
        assert identity_of({"x-workflow-id": "Größe-数".encode().decode("latin-1")}).workflow == "Größe-数"
        assert identity_of({"x-workflow-id": "Gr\xf6\xdfe"}).workflow == "Größe"
        assert identity_of({"baggage": "gen_ai.agent.name=é".encode().decode("latin-1")}).agent == "é"

    def test_a_workflow_is_not_its_own_parent(self) -> None:
        assert identity_of({"x-workflow-id": "w", "x-parent-workflow-id": " w "}).parent is None


class TestFlagsAndNumbers:
    @pytest.mark.parametrize("name", ["x-workflow-final", "x-session-final", "x-dynamo-session-final"])
    @pytest.mark.parametrize("value", ["maybe", "2", "\xff", "t\r\nrue"])
    def test_a_flag_that_cannot_be_read_is_a_400_that_names_the_header(self, name: str, value: str) -> None:
        with pytest.raises(ApiError) as caught:
            identity_of({name: value})
        assert (caught.value.status, caught.value.param) == (400, name)
        assert name in caught.value.message

    @pytest.mark.parametrize(
        ("value", "final"),
        [("TRUE", True), (" 1 ", True), ("yes", True), ("False", False), ("0", False), ("no", False), ("", False)],
    )
    def test_flags(self, value: str, final: bool) -> None:
        assert identity_of({"x-workflow-final": value}).final is final

    @pytest.mark.parametrize("value", ["high", "1.5", "", str(MAX_PRIORITY + 1), "-" + "9" * 30, "9" * 5000])
    def test_a_priority_that_cannot_be_read_is_a_400_that_names_the_header(self, value: str) -> None:
        with pytest.raises(ApiError) as caught:
            identity_of({"x-workflow-priority": value})
        assert (caught.value.status, caught.value.param) == (400, "x-workflow-priority")
        assert len(caught.value.message) < 300

    def test_the_priority_header_wins_over_the_body(self) -> None:
        assert identity_of({"x-workflow-priority": "-3"}, {"priority": 5}).priority == -3
        assert identity_of(body={"priority": 5}).priority == 5

    @pytest.mark.parametrize("value", [True, "5", 1.5, None, [5]])
    def test_a_priority_of_the_wrong_type_in_the_body_is_none(self, value: Any) -> None:
        assert identity_of(body={"priority": value}).priority is None


class TestTenant:
    def test_header_then_organisation_then_key(self) -> None:
        headers = {"authorization": "Bearer k", "openai-organization": "org", "x-tenant-id": "t"}
        assert identity_of(headers).tenant == "t"
        assert identity_of(headers | {"x-tenant-id": " "}).tenant == "org"
        del headers["x-tenant-id"], headers["openai-organization"]
        assert str(identity_of(headers).tenant).startswith("key-")

    @given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=12, max_size=200))
    def test_the_key_appears_nowhere_in_the_identity(self, key: str) -> None:
        found = identified({"authorization": f"Bearer {key}"}, CHAT)
        assert key not in repr(dataclasses.asdict(found))
        assert found.identity.tenant == identity_of({"authorization": f"bearer  {key} "}).tenant
        assert found.identity.tenant != identity_of({"authorization": f"Bearer {key}x"}).tenant

    @pytest.mark.parametrize("value", ["", "Bearer", "Bearer  ", "Basic abc", "secret"])
    def test_without_a_bearer_key_there_is_no_tenant(self, value: str) -> None:
        assert identity_of({"authorization": value}).tenant is None


def assert_names_a_header(error: ApiError, headers: dict[str, str]) -> None:
    assert error.status == 400
    assert error.param in headers


class TestNothingBreaksIt:
    _names = st.sampled_from(
        [
            *(name for names in VENDOR_HEADERS for name in names.model_dump().values() if name),
            *("x-workflow-id", "x-agent-name", "x-parent-workflow-id", "x-workflow-final", "x-session-id"),
            *("x-workflow-priority", "x-tenant-id", "openai-organization", "authorization", "baggage"),
        ]
    )
    # Servers read header bytes as Latin-1.
    _values = st.binary(max_size=200).map(lambda data: data.decode("latin-1")) | st.text(max_size=60).map(
        lambda text: "gen_ai.conversation.id=" + text.encode("utf-8", "replace").decode("latin-1")
    )
    _json = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=150),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
        max_leaves=12,
    )
    _fields = st.sampled_from(
        ["messages", "tools", "prompt", "metadata", "session_id", "prompt_cache_key", "user", "priority", "x"]
    )
    _metadata = st.fixed_dictionaries({}, optional={"workflow_id": _json, "agent": _json})

    @given(
        headers=st.dictionaries(_names, _values, max_size=5),
        body=st.dictionaries(_fields, _json, max_size=6),
        metadata=_metadata,
    )
    def test_any_request_has_a_clean_identity_or_an_api_error(
        self, headers: dict[str, str], body: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        try:
            identity = identity_of(headers, {"metadata": metadata} | body)
        except ApiError as error:
            assert_names_a_header(error, headers)
            return
        for name in (identity.workflow, identity.agent):
            assert 1 <= len(name) <= MAX_ID_CHARACTERS
            assert not any(unicodedata.category(c).startswith("C") for c in name)
        assert identity.parent != identity.workflow
