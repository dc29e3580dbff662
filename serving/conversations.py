"""Which known conversation does a request extend? Used when a request names no workflow. Pure code.

A chat is a chain of digests, one after each message; a text prompt has a digest at the end of each prompt known to
begin with the same 64 characters (a shorter prompt is no evidence of anything). A request belongs to the workflow
whose remembered request is the longest proper beginning of it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ANCHOR_ROLES = {"system", "developer"}
_ANSWER_ROLES = {"assistant", "tool", "function"}
_DIGEST_BYTES = 16
_BUCKET_CHARACTERS = 64
_MAX_LENGTHS_PER_BUCKET = 2048
_MAX_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Conversation:
    """What of a request identifies its conversation.

    anchor: hash of the leading system messages and the tools; None without either.
    chain: for a chat, the digest of the messages up to and including each one.
    answered: whether the chat contains an answer, so that an equal chat is the same one and not a namesake.
    text: for a completion, its one prompt, if it is long enough to tell conversations apart.
    """

    anchor: str | None = None
    chain: tuple[bytes, ...] = ()
    answered: bool = False
    text: str | None = None


def conversation_of(body: Mapping[str, Any]) -> Conversation:
    """The conversation in a chat or completion body; empty for a body that is neither or malformed."""
    messages = body.get("messages")
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes):
        try:
            return _chat(messages, body.get("tools"))
        except RecursionError:  # nested deeper than json can follow
            return Conversation()
    prompt = body.get("prompt")
    if isinstance(prompt, str) and len(prompt) >= _BUCKET_CHARACTERS:
        return Conversation(text=prompt)
    return Conversation()


def _chat(messages: Sequence[Any], tools: Any) -> Conversation:
    anchor = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    running = hashlib.blake2b(_canonical(tools), digest_size=_DIGEST_BYTES)
    chain: list[bytes] = []
    leading, anchored, answered = True, bool(tools), False
    anchor.update(_canonical(tools))
    for message in messages:
        encoded = _canonical(message)
        role = _role(message)
        leading = leading and role in _ANCHOR_ROLES
        if leading:
            anchor.update(encoded)
            anchored = True
        answered = answered or role in _ANSWER_ROLES
        running.update(encoded)
        chain.append(running.digest())
    return Conversation(anchor.hexdigest() if anchored else None, tuple(chain), answered)


def _role(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode() + b"\n"


class ConversationIndex:
    """The last requests of untagged conversations, at most `max_conversations`; the oldest are forgotten."""

    def __init__(self, max_conversations: int) -> None:
        self._max = max_conversations
        self._workflows: OrderedDict[bytes, deque[str]] = OrderedDict()
        # For texts: beginning -> length -> the newest text of that length, the least recently remembered first.
        self._lengths: dict[str, dict[int, bytes]] = {}
        self._places: dict[bytes, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    @staticmethod
    def new_workflow() -> str:
        return f"auto-{secrets.token_hex(8)}"

    def find(self, conversation: Conversation) -> str | None:
        """The workflow that this request extends, None for a new conversation.

        Two conversations that began alike share a digest: the first to go on is taken for the one that began first.
        """
        if conversation.text is not None:
            return self._claim(reversed(self._text_digests(conversation.text)))
        chain = conversation.chain
        if chain and conversation.answered and (known := self._workflows.get(chain[-1])):
            return known[-1]  # the same request again: a retry
        return self._claim(reversed(chain[:-1]))

    def remember(self, conversation: Conversation, workflow: str) -> None:
        """This request was made by `workflow`; a later one that extends it will be found to be the same's."""
        if conversation.text is not None:
            self._store(self._placed(conversation.text), workflow)
        elif conversation.chain:
            self._store(conversation.chain[-1], workflow)

    def _store(self, digest: bytes, workflow: str) -> None:
        known = self._workflows.setdefault(digest, deque(maxlen=_MAX_CANDIDATES))
        if workflow not in known:
            known.append(workflow)
        self._workflows.move_to_end(digest)
        while len(self._workflows) > self._max:
            self._displace(self._workflows.popitem(last=False)[0])

    def _placed(self, text: str) -> bytes:
        """The digest of a text, which will be looked for at its length from now on."""
        digest, beginning = _text_digest(text), text[:_BUCKET_CHARACTERS]
        lengths = self._lengths.setdefault(beginning, {})
        lengths.pop(len(text), None)
        lengths[len(text)] = digest
        if len(lengths) > _MAX_LENGTHS_PER_BUCKET:
            del lengths[next(iter(lengths))]
        self._places[digest] = beginning, len(text)
        return digest

    def _displace(self, digest: bytes) -> None:
        beginning, length = self._places.pop(digest, ("", 0))
        lengths = self._lengths.get(beginning, {})
        if lengths.get(length) == digest:
            del lengths[length]
            if not lengths:
                del self._lengths[beginning]

    def _claim(self, digests: Iterable[bytes]) -> str | None:
        for digest in digests:
            if known := self._workflows.get(digest):
                return known.popleft() if len(known) > 1 else known[0]
        return None

    def _text_digests(self, text: str) -> list[bytes]:
        """Digests of `text` cut at each known length of its bucket, shortest first, the whole text excluded."""
        lengths = sorted(self._lengths.get(text[:_BUCKET_CHARACTERS], ()))
        running, start, digests = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0, []
        for length in lengths:
            if length >= len(text):
                break
            running.update(text[start:length].encode(errors="surrogatepass"))
            start = length
            digests.append(running.copy().digest())
        return digests


def _text_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
