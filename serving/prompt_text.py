"""How long a prompt is, before anybody has tokenized it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Of most text, by most tokenizers; the first guess.
TOKENS_PER_CHARACTER = 0.25
# Weight of the newest call in the running mean.
_NEWEST = 0.1


def texts_of(body: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """The texts in a chat or completion body, and how many tokens there are besides; nothing of what is malformed."""
    if tools := body.get("tools"):
        yield str(tools), 0
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else (content,):
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text, 0
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield prompt, 0
    elif isinstance(prompt, list):
        for one in prompt:
            if isinstance(one, str):
                yield one, 0
            else:
                yield "", len(one) if isinstance(one, list) else 1


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
