"""One engine's OpenAI surface: SGLang's own serving classes, with identity going in and the cache split coming out.

Runs inside `EngineReplica`. What SGLang answers is passed on, but for its errors, which become OpenAI error objects.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from cache_actor.messages import identity_fields
from serving.calls import JSON, SSE, EngineCall, Kind, Reply
from serving.errors import ApiError, invalid_request, sse_event
from serving.sglang_plugin.recorder import IDENTITY_ACTION, IDENTITY_VERSION

logger = logging.getLogger("forecache")

_CONTEXT_TOO_LONG = re.compile(r"longer than the model's context|maximum context length|maximum allowed length")
_SSE_ERROR = 'data: {"error":'
_SSE_USAGE = '"prompt_tokens_details":{'


@dataclass(slots=True)
class CallContext:
    """Stands where SGLang expects the HTTP request: it carries the call down and what became of it up.

    `cached` holds, for each sequence of the call, its cached prompt tokens by tier.
    """

    call: EngineCall
    cached: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def headers(self) -> Mapping[str, str]:
        """None: what a client's headers mean has been settled at the ingress."""
        return {}

    async def is_disconnected(self) -> bool:
        """Never: a client that goes away cancels the call's task, which aborts it in the engine."""
        return False

    def note(self, output: dict[str, Any], position: int) -> None:
        """Takes the split from one output of the tokenizer manager; without HiCache all hits are on the device."""
        meta = output.get("meta_info") or {}
        split = meta.get("cached_tokens_details") or {"device": meta.get("cached_tokens", 0)}
        self.cached[output.get("index", position)] = {
            tier: count for tier, count in split.items() if isinstance(count, int)
        }

    def split(self) -> dict[str, int]:
        """Cached prompt tokens by tier, over the call's prompts; the `n` answers to one prompt count once."""
        n = self.call.body.get("n") or 1
        total = {"device": 0, "host": 0}
        for position, tiers in self.cached.items():
            if position % n == 0:
                for tier, count in tiers.items():
                    total[tier] = total.get(tier, 0) + count
        return total


class RecordingTokenizerManager(TokenizerManager):  # type: ignore[misc]
    """SGLang's tokenizer manager; what it yields for one of our calls is noted in the call's context."""

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        async for output in super().generate_request(obj, request):
            if isinstance(request, CallContext):
                for position, one in enumerate(output if isinstance(output, list) else [output]):
                    request.note(one, position)
            yield output


class _Chat(OpenAIServingChat):  # type: ignore[misc]
    def _convert_to_internal_request(self, request: Any, raw_request: Any = None) -> tuple[Any, Any]:
        adapted, processed = super()._convert_to_internal_request(request, raw_request)
        return _with_identity(adapted, raw_request.call), processed


class _Completion(OpenAIServingCompletion):  # type: ignore[misc]
    def _convert_to_internal_request(self, request: Any, raw_request: Any = None) -> tuple[Any, Any]:
        adapted, processed = super()._convert_to_internal_request(request, raw_request)
        return _with_identity(adapted, raw_request.call), processed


def _with_identity(adapted: Any, call: EngineCall) -> Any:
    """Puts the call's id and identity into an internal request, over whatever the client had sent there."""
    adapted.rid = call.rid
    adapted.kv_hints = {
        "protocol_version": "1",
        "message_id": call.rid,
        "actions": [
            {
                "action_id": uuid.uuid4().hex,
                "action_type": IDENTITY_ACTION,
                "action_version": IDENTITY_VERSION,
                "payload": {"fields": identity_fields(call.identity)},
            }
        ],
    }
    return adapted


class OpenAIApi:
    """Answers calls with one engine.

    Args:
        tokenizer_manager: the engine's, a `RecordingTokenizerManager`.
        template_manager: the engine's.
        engine_id: what replies name as their engine.
        retry_after_s: for replies that the engine was too busy for.
    """

    def __init__(self, tokenizer_manager: Any, template_manager: Any, engine_id: str, retry_after_s: int) -> None:
        self._engine_id = engine_id
        self._retry_after_s = retry_after_s
        self._handlers: dict[Kind, tuple[Any, Any]] = {
            "chat": (ChatCompletionRequest, _Chat(tokenizer_manager, template_manager)),
            "completion": (CompletionRequest, _Completion(tokenizer_manager, template_manager)),
        }

    async def answer(self, call: EngineCall) -> AsyncIterator[Reply | bytes]:
        """A `Reply`, then for a stream its further chunks. Errors are replies, too."""
        context = CallContext(call)
        try:
            request_class, handler = self._handlers[call.kind]
            response = await handler.handle_request(_validated(request_class, call.body), context)
            if isinstance(response, StreamingResponse):
                async for part in self._stream(response, context):
                    yield part
                return
            if isinstance(response, Response):
                raise _from_sglang(orjson.loads(response.body), response.status_code, self._retry_after_s)
            body = response.model_dump(mode="json")
            if (usage := body.get("usage")) and usage.get("prompt_tokens_details") is not None:
                usage["prompt_tokens_details"] |= context.split()
            yield Reply(200, JSON, self._engine_id, orjson.dumps(body))
        except ApiError as error:
            yield self.error_reply(error)

    def error_reply(self, error: ApiError) -> Reply:
        return Reply(error.status, JSON, self._engine_id, orjson.dumps(error.body()), retry_after_s=error.retry_after_s)

    async def _stream(self, response: StreamingResponse, context: CallContext) -> AsyncIterator[Reply | bytes]:
        started = False
        async for chunk in response.body_iterator:
            text = chunk if isinstance(chunk, str) else bytes(chunk).decode()
            if text.startswith(_SSE_ERROR):
                text = self._sse_error(text)
            elif _SSE_USAGE in text:
                text = _sse_with_split(text, context.split())
            data = text.encode()
            yield data if started else Reply(200, SSE, self._engine_id, data)
            started = True

    def _sse_error(self, text: str) -> str:
        error = orjson.loads(text.removeprefix("data: "))["error"]
        return sse_event(_from_sglang(error, error.get("code") or 500, self._retry_after_s)).decode()


def _sse_with_split(text: str, split: dict[str, int]) -> str:
    event = orjson.loads(text.removeprefix("data: "))
    details = (event.get("usage") or {}).get("prompt_tokens_details")
    if details is None:
        return text
    details |= split
    return f"data: {orjson.dumps(event).decode()}\n\n"


def _validated(request_class: Any, body: dict[str, Any]) -> Any:
    """The body as SGLang's request model.

    Raises:
        ApiError: a field that does not fit (400, with its name and value).
    """
    try:
        return request_class.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        # The location of an error inside a union names the union's members too; a client knows fields and indices.
        path = [part for part in first["loc"] if isinstance(part, int) or not part[:1].isupper()]
        param = ".".join(str(part) for part in path if part != "function-after" and "[" not in str(part)) or None
        message = first["msg"].removeprefix("Value error, ")
        raise invalid_request(f"{param}: {message}" if param else message, param=param) from error


def _from_sglang(error: Mapping[str, Any], status: int, retry_after_s: int) -> ApiError:
    """SGLang's error object as ours."""
    error = error.get("error", error)
    message, param = str(error.get("message", "the engine gave no reason")), error.get("param")
    if _CONTEXT_TOO_LONG.search(message):
        return invalid_request(message, param=param, code="context_length_exceeded")
    if status >= 500 and status != 503:
        logger.error("forecache: SGLang answered %d: %s", status, message)
    retry = retry_after_s if status in (429, 503) else None
    return ApiError(int(status), message, code=None, param=param, retry_after_s=retry)
