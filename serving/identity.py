"""Request -> RequestIdentity: which workflow and which agent makes a call. Pure code.

Sources, first hit wins per field: our own headers, `x-session-id` and its kin, the vendors' native headers, W3C
baggage, body fields, and last, inference from the text itself (`serving.conversations`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_actor.messages import RequestIdentity
from serving.config import IdentityConfig, SessionHeaders
from serving.conversations import Conversation, ConversationIndex, conversation_of
from serving.errors import invalid_request
from serving.naming import BAGGAGE_WORKFLOW, baggage_of, clean_id, header, workflow_by

DEFAULT_AGENT = "default"

OUR_HEADERS = SessionHeaders(
    session="x-workflow-id", parent="x-parent-workflow-id", final="x-workflow-final", agent="x-agent-name"
)
GENERIC_HEADERS = SessionHeaders(session="x-session-id", parent="x-parent-session-id", final="x-session-final")
PRIORITY_HEADER = "x-workflow-priority"
TENANT_HEADER = "x-tenant-id"
ORGANIZATION_HEADER = "openai-organization"
MAX_PRIORITY = 1_000_000

_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no", ""}


@dataclass(frozen=True, slots=True)
class Identified:
    """An identity, and what the router and the index of conversations need beside it."""

    identity: RequestIdentity
    anchor: str | None
    conversation: Conversation


@dataclass(slots=True)
class _Found:
    """Fields found so far; a field that is set is not set again."""

    workflow: str | None = None
    source: str = "inferred"
    agent: str | None = None
    parent: str | None = None
    final: bool | None = None

    def take(
        self, source: str, workflow: Any = None, agent: Any = None, parent: Any = None, final: bool | None = None
    ) -> None:
        if self.workflow is None and (cleaned := clean_id(workflow)):
            self.workflow, self.source = cleaned, source
        self.agent = self.agent or clean_id(agent)
        self.parent = self.parent or clean_id(parent)
        self.final = self.final if self.final is not None else final


def identify(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    config: IdentityConfig,
    conversations: ConversationIndex,
) -> Identified:
    """Who makes this request.

    Args:
        headers: request headers; looked up by lower-case name.
        body: the parsed JSON body of a chat completion or a completion.
        config: the vendors' headers.
        conversations: consulted only when nothing names the workflow, and only when the request is not refused:
            a workflow that is found is taken from those that wait to go on.

    Raises:
        ApiError: a flag or a number in a header that cannot be read (400, with the header's name).
    """
    found = _Found()
    for source, names in header_sources(config):
        _take_headers(found, source, names, headers)
    baggage = baggage_of(headers)
    found.take("baggage", workflow=baggage.get(BAGGAGE_WORKFLOW), agent=baggage.get("gen_ai.agent.name"))
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        found.take("metadata", workflow=metadata.get("workflow_id"), agent=metadata.get("agent"))
    for name in ("session_id", "prompt_cache_key", "user"):
        found.take(name, workflow=body.get(name))

    priority = _priority(headers, body)
    conversation = conversation_of(body)
    if found.workflow is None:
        found.workflow = conversations.find(conversation) or conversations.new_workflow()
    agent = found.agent or (f"agent-{conversation.anchor[:10]}" if conversation.anchor else DEFAULT_AGENT)
    identity = RequestIdentity(
        workflow=found.workflow,
        agent=agent,
        parent=found.parent if found.parent != found.workflow else None,
        final=bool(found.final),
        priority=priority,
        tenant=_tenant(headers),
        source=found.source,
    )
    return Identified(identity, conversation.anchor, conversation)


def header_sources(config: IdentityConfig) -> list[tuple[str, SessionHeaders]]:
    """The kinds of headers that say who calls, each with what `RequestIdentity.source` says of it, in their order."""
    sources = [("header", OUR_HEADERS), ("session", GENERIC_HEADERS)]
    return sources + [(f"vendor:{names.session}", names) for names in config.vendor_headers]


def _take_headers(found: _Found, source: str, names: SessionHeaders, headers: Mapping[str, str]) -> None:
    parent = clean_id(header(headers, names.parent))
    if parent is None and clean_id(header(headers, names.child)):
        parent = clean_id(header(headers, names.session))
    found.take(
        source,
        workflow=workflow_by(headers, names.session, names.child),
        agent=header(headers, names.agent),
        parent=parent,
        final=_flag(names.final, header(headers, names.final)),
    )


def _flag(name: str | None, value: str | None) -> bool | None:
    if value is None:
        return None
    text = value.strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise invalid_request(f"header {name} cannot be {value[:80]!r}; send 'true' or 'false'", param=name)


def _priority(headers: Mapping[str, str], body: Mapping[str, Any]) -> int | None:
    text = headers.get(PRIORITY_HEADER)
    if text is None:
        value = body.get("priority")
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    try:
        priority = int(text)
    except ValueError:
        priority = MAX_PRIORITY + 1
    if abs(priority) > MAX_PRIORITY:
        raise invalid_request(
            f"header {PRIORITY_HEADER} cannot be {text[:80]!r}; send an integer of at most ±{MAX_PRIORITY}",
            param=PRIORITY_HEADER,
        )
    return priority


def _tenant(headers: Mapping[str, str]) -> str | None:
    """The tenant that is named, else a hash of the API key: the key itself never leaves the ingress."""
    for name in (TENANT_HEADER, ORGANIZATION_HEADER):
        if tenant := clean_id(header(headers, name)):
            return tenant
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return "key-" + hashlib.blake2b(key.strip().encode(), digest_size=6).hexdigest()
    return None
