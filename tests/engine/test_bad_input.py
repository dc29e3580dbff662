"""No request ends an engine: what SGLang's front lets through and its scheduler dies of is refused before."""

from __future__ import annotations

import multiprocessing
import re
from typing import Any

import pytest
from engine_under_test import EngineUnderTest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
PROMPT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f"}}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [fields]}


# What is sent, and the parameter that the error names.
BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": [-1]}, "input_ids"),
    ({"input_ids": [10**9]}, "input_ids"),
    ({"input_ids": []}, "input_ids"),
    ({"stop_token_ids": [-5]}, "stop_token_ids"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 2**40}, "top_k"),
    ({"min_p": 5}, "min_p"),
    ({"seed": 2**64}, "seed"),
    ({"priority": 2**70}, "priority"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"top_logprobs": 10**6, "logprobs": True}, "top_logprobs"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"min_tokens": 10}, "min_tokens"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"frequency_penalty": 1000}, "frequency_penalty"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1e5}}, "logit_bias"),
    ({"stop": ["x"] * 1000}, "stop"),
    ({"stop_regex": "((("}, "stop_regex"),
    ({"regex": "((("}, "regex"),
    ({"ebnf": "((("}, "ebnf"),
    ({"response_format": schema({"type": "nonsense"})}, "response_format"),
    ({"response_format": schema({"$ref": "#/definitions/x"})}, "response_format"),
    ({"tool_choice": "required"}, "tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"lora_path": "nope"}, "lora_path"),
    ({"return_hidden_states": True}, "return_hidden_states"),
    ({"custom_logit_processor": "x"}, "custom_logit_processor"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    (message(role="alien", content="x"), "messages.0.role"),
    (message(role="user", content=[{"type": "text", "text": 7}]), "messages.0.content.0.text"),
    (message(role="user", content=[{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]), "messages"),
    (message(role="user", content="word " * 5000), "messages"),
]
BAD_PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[1], [-1]]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": "word " * 5000}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 10**6}, "logprobs"),
]
# Odd, but meant to work.
ODD_CHATS: list[dict[str, Any]] = [
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"max_tokens": 0},
    {"top_logprobs": 20, "logprobs": True},
    {"top_k": 2**31 - 1},
    {"stop": ""},
    {"session_id": "never opened"},
    {"cache_salt": "x" * 10_000},
    {"input_ids": [1, 2, 3]},
    message(role="user", content=""),
    message(role="user", content="\u0000<|im_end|>"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
class TestBadInput:
    @pytest.mark.parametrize(("extra", "param"), BAD_CHATS, ids=lambda value: str(value)[:60])
    def test_a_bad_chat_is_an_error_that_names_the_parameter(
        self, shared_engine: EngineUnderTest, extra: dict[str, Any], param: str, stream: bool
    ) -> None:
        check_refused(shared_engine.answer({**CHAT, **extra, "stream": stream}), param)

    @pytest.mark.parametrize(("extra", "param"), BAD_PROMPTS, ids=lambda value: str(value)[:60])
    def test_a_bad_prompt_is_an_error_that_names_the_parameter(
        self, shared_engine: EngineUnderTest, extra: dict[str, Any], param: str, stream: bool
    ) -> None:
        check_refused(shared_engine.answer({**PROMPT, **extra, "stream": stream}, "completion"), param)

    @pytest.mark.parametrize("extra", ODD_CHATS, ids=lambda value: str(value)[:60])
    def test_odd_but_valid_works(self, shared_engine: EngineUnderTest, extra: dict[str, Any], stream: bool) -> None:
        status, _ = shared_engine.answer({**CHAT, **extra, "stream": stream})
        assert status == 200


def check_refused(answer: tuple[int, Any], param: str) -> None:
    status, body = answer
    assert status == 400, body
    assert body["error"]["param"] == param, body
    assert body["error"]["type"] == "invalid_request_error"
    assert len(multiprocessing.active_children()) == 2, "a process of the engine has died"


def test_a_context_too_long_says_both_numbers(shared_engine: EngineUnderTest) -> None:
    _, body = shared_engine.answer({**PROMPT, "prompt": "word " * 5000}, "completion")
    assert body["error"]["code"] == "context_length_exceeded"
    sent, limit = (int(number) for number in re.findall(r"(\d+) tokens", body["error"]["message"]))
    assert sent > limit == 1500
