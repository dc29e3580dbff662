"""Runs of tau-bench (Yao et al., arXiv 2406.12045) with their text, as workflows of an assistant and a simulated user.

A file holds a run a line: `{workflow_id, messages: [{role, content, tool_calls?}, …]}`, the messages as the assistant
has them. A message of the user is a call of `user_sim`, one of the assistant a call of `assistant`; the prompt of each
is what had been said before. The instruction of the user's model is not in the file: the beginning that all runs share
stands for it. Tokens are not in the file either, and are taken for a quarter of the characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from serving.benchmark.hidden_states import Message
from serving.benchmark.text_workflows import TextCall, TextWorkflow

FILES = "*_messages.jsonl"
USER, ASSISTANT = "user_sim", "assistant"
# How tau-bench opens the conversation of the model that plays the user.
USER_OPENING: tuple[Message, ...] = (
    ("system", "You are a user interacting with an agent."),
    ("user", "Hi! How can I help you today?"),
)
CHARACTERS_PER_TOKEN = 4


class TauError(ValueError):
    """A file does not hold what it should; the message has its path and line."""


def read_tau(folder: Path) -> list[TextWorkflow]:
    """The runs of all files in the folder whose names end in `_messages.jsonl`; none if there is no such file.

    Raises:
        TauError: a line is no run.
        OSError: a file cannot be read.
    """
    return [
        _workflow(line, f"{file}:{number}")
        for file in sorted(folder.glob(FILES))
        for number, line in enumerate(file.read_bytes().splitlines(), 1)
    ]


def _workflow(line: bytes, where: str) -> TextWorkflow:
    try:
        run = orjson.loads(line)
        calls = _calls([(message["role"], _content(message), _tool(message)) for message in run["messages"]])
        return TextWorkflow(str(run["workflow_id"]), tuple(calls))
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise TauError(
            f"{where}: it is no run, an object with `workflow_id` and `messages`: {type(error).__name__}: {error}"
        ) from None


def _calls(messages: list[tuple[str, str, str | None]]) -> list[TextCall]:
    calls = []
    told: dict[str, list[Message]] = {USER: list(USER_OPENING), ASSISTANT: []}
    for role, content, tool in messages:
        # Each side has its own words as the assistant's. The user never sees tools.
        if role in ("user", "assistant"):
            agent = USER if role == "user" else ASSISTANT
            calls.append(
                TextCall(
                    agent,
                    tuple(told[agent]),
                    sum(_tokens(text) for _, text in told[agent]),
                    _tokens(content),
                    None if agent == USER else tool or "respond",
                )
            )
        told[ASSISTANT].append((role, content))
        if role == "user" or (role == "assistant" and tool is None):
            told[USER].append(("assistant" if role == "user" else "user", content))
    return calls


def _content(message: Mapping[str, Any]) -> str:
    said = [message["content"]] if message["content"] else []
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return "\n".join([*said, *(f"{function['name']}({function['arguments']})" for function in functions)])


def _tool(message: Mapping[str, Any]) -> str | None:
    called = message.get("tool_calls")
    return str(called[0]["function"]["name"]) if called else None


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
