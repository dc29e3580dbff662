"""Which known conversation does a request extend? Used when a request names no workflow. Pure code.

A chat is a chain of digests, one after each message; a text prompt has a digest at the end of each prompt known to
begin alike. A request belongs to the workflow whose remembered request is the longest proper beginning of it.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ANCHOR_ROLES = {"system", "developer"}
_ANSWER_ROLES = {"assistant", "tool", "function"}
_DIGEST_BYTES = 16
_BUCKET_CHARACTERS = 64
_MAX_LENGTHS_PER_BUCKET = 1024
_MAX_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Conversation:
    """What of a request identifies its conversation.

    anchor: hash of the leading system messages and the tools; None without either.
    chain: for a chat, the digest of the messages up to and including each one.
    answered: whether the chat contains an answer, so that an equal chat is the same one and not a namesake.
    text: for a completion, its one prompt.
    """

    anchor: str | None = None
    chain: tuple[bytes, ...] = ()
    answered: bool = False
    text: str | None = None


def conversation_of(body: Mapping[str, Any]) -> Conversation:
    """The conversation in a chat or completion body; empty for a body that is neither or malformed."""
    messages = body.get("messages")
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        return _chat(messages, body.get("tools"))
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
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
        role = message.get("role") if isinstance(message, Mapping) else None
        leading = leading and role in _ANCHOR_ROLES
        if leading:
            anchor.update(encoded)
            anchored = True
        answered = answered or role in _ANSWER_ROLES
        running.update(encoded)
        chain.append(running.digest())
    return Conversation(anchor.hexdigest() if anchored else None, tuple(chain), answered)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode() + b"\n"


class ConversationIndex:
    """The last requests of untagged conversations, at most `max_conversations`; the oldest are forgotten."""

    def __init__(self, max_conversations: int) -> None:
        self._max = max_conversations
        self._workflows: OrderedDict[bytes, deque[str]] = OrderedDict()
        self._lengths: OrderedDict[str, list[int]] = OrderedDict()

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
            lengths = self._lengths.setdefault(conversation.text[:_BUCKET_CHARACTERS], [])
            self._lengths.move_to_end(conversation.text[:_BUCKET_CHARACTERS])
            position = bisect.bisect_left(lengths, len(conversation.text))
            if position == len(lengths) or lengths[position] != len(conversation.text):
                lengths.insert(position, len(conversation.text))
                del lengths[:-_MAX_LENGTHS_PER_BUCKET]
            self._store(_text_digest(conversation.text), workflow)
        elif conversation.chain:
            self._store(conversation.chain[-1], workflow)

    def _store(self, digest: bytes, workflow: str) -> None:
        known = self._workflows.setdefault(digest, deque(maxlen=_MAX_CANDIDATES))
        if workflow not in known:
            known.append(workflow)
        self._workflows.move_to_end(digest)
        while len(self._workflows) > self._max:
            self._workflows.popitem(last=False)
        while len(self._lengths) > self._max:
            self._lengths.popitem(last=False)

    def _claim(self, digests: Any) -> str | None:
        for digest in digests:
            if known := self._workflows.get(digest):
                return known.popleft() if len(known) > 1 else known[0]
        return None

    def _text_digests(self, text: str) -> list[bytes]:
        """Digests of `text` cut at each known length of its bucket, shortest first, the whole text excluded."""
        lengths = self._lengths.get(text[:_BUCKET_CHARACTERS], ())
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
