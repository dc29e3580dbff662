"""Ways in which a request names its workflow."""

from __future__ import annotations

from typing import Any

from serving.config import VENDOR_HEADERS

# Each way to name a workflow, the first that wins first: source, headers, body.
SOURCES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("header", {"x-workflow-id": "w-header"}, {}),
    ("session", {"x-session-id": "w-session"}, {}),
    *((f"vendor:{names.session}", {names.session: f"w-{names.session}"}, {}) for names in VENDOR_HEADERS),
    ("baggage", {"baggage": "gen_ai.conversation.id=w-baggage"}, {}),
    ("metadata", {}, {"metadata": {"workflow_id": "w-metadata"}}),
    ("session_id", {}, {"session_id": "w-session-id"}),
    ("prompt_cache_key", {}, {"prompt_cache_key": "w-cache-key"}),
    ("user", {}, {"user": "w-user"}),
]


def merged(ways: list[tuple[str, dict[str, str], dict[str, Any]]]) -> tuple[dict[str, str], dict[str, Any]]:
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    for _, more_headers, more_body in reversed(ways):
        headers |= more_headers
        body |= more_body
    return headers, body
