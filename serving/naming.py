"""How the headers of a request name its workflow: the order of precedence, and what becomes of a name. Pure code.

Ray Serve's HTTP proxies load this beside the ingress, so it imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

MAX_ID_CHARACTERS = 128
BAGGAGE_HEADER = "baggage"
BAGGAGE_WORKFLOW = "gen_ai.conversation.id"


def workflow_named(headers: Mapping[str, str], sources: Iterable[tuple[str, str | None]]) -> str | None:
    """The workflow that headers name; None if they name none.

    Args:
        headers: looked up by lower-case name.
        sources: for each kind of client its header for a session and, if it has one, that for a sub-agent's, the
            first that wins first. W3C baggage comes after them.
    """
    for session, child in sources:
        if workflow := workflow_by(headers, session, child):
            return workflow
    return clean_id(baggage_of(headers).get(BAGGAGE_WORKFLOW))


def workflow_by(headers: Mapping[str, str], session: str, child: str | None) -> str | None:
    """The workflow that one kind of client names: the sub-agent's session, or else the session."""
    return clean_id(header(headers, child)) or clean_id(header(headers, session))


def header(headers: Mapping[str, str], name: str | None) -> str | None:
    """Header values are bytes that servers read as Latin-1; where they are UTF-8, that is what the client meant."""
    value = headers.get(name.lower()) if name else None
    if value is None or value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def baggage_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The members of the `baggage` header, by name."""
    value = header(headers, BAGGAGE_HEADER)
    return parse_baggage(value) if value else {}


def parse_baggage(text: str) -> dict[str, str]:
    """The members of a W3C `baggage` header, percent-decoded; malformed members are passed over."""
    members: dict[str, str] = {}
    for member in text.split(","):
        name, separator, value = member.partition(";")[0].partition("=")
        if separator and name.strip():
            members.setdefault(name.strip().lower(), unquote(value.strip()))
    return members


def clean_id(value: Any) -> str | None:
    """An id without control characters and surrounding space, at most 128 characters; None if nothing is left.

    A longer id keeps its head and ends in a hash of the whole, so that two long ids stay two.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    visible = "".join(c for c in str(value) if unicodedata.category(c)[0] != "C")
    text = unicodedata.normalize("NFC", visible).strip()
    if len(text) > MAX_ID_CHARACTERS:
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        text = f"{text[: MAX_ID_CHARACTERS - 17]}~{digest}"
    return text or None
