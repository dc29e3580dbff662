"""How long a prompt is, before anybody has tokenized it. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Of most text, by most tokenizers; the first guess.
TOKENS_PER_CHARACTER = 0.25
# Prompts are compared in pieces of so many tokens, or of as many characters as are likely to be that.
PIECE_TOKENS = 16
# Weight of the newest call in the running mean.
_NEWEST = 0.1


def parts_of(body: Mapping[str, Any]) -> Iterator[str | list[Any]]:
    """What the prompt of a chat or completion body is made of: texts and lists of token ids; nothing of what is
    malformed."""
    if tools := body.get("tools"):
        yield str(tools)
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else (content,):
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield from (one for one in prompt if isinstance(one, str | list))
        if ids := [one for one in prompt if not isinstance(one, str | list)]:
            yield ids


def pieces_of(parts: Iterable[str | list[Any]]) -> Iterator[tuple[str, int]]:
    """Names of the pieces of a prompt, and how many tokens each is likely to have: equal pieces are named alike."""
    for part in parts:
        length = PIECE_TOKENS if isinstance(part, list) else round(PIECE_TOKENS / TOKENS_PER_CHARACTER)
        for start in range(0, len(part), length):
            piece = part[start : start + length]
            written = piece if isinstance(piece, str) else repr(piece)
            name = f"{zlib.crc32(written.encode(errors='surrogatepass')):08x}"
            yield name, max(1, round(PIECE_TOKENS * len(piece) / length))


class PromptLengths:
    """Guesses tokens from characters, as their ratio has been lately."""

    def __init__(self) -> None:
        self._ratio = TOKENS_PER_CHARACTER

    def tokens(self, characters: int) -> int:
        """A guess."""
        return round(self._ratio * characters)

    def counted(self, characters: int, tokens: int) -> None:
        """A prompt of so many characters had so many tokens; one without any says nothing."""
        if characters > 0 and tokens > 0:
            self._ratio += _NEWEST * (tokens / characters - self._ratio)
