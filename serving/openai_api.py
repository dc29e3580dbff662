"""One engine's OpenAI surface: SGLang's own serving classes, with identity going in and the cache split coming out.

Runs inside `EngineReplica`. What SGLang answers is passed on, but for its errors, which become OpenAI error objects.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import HTTPException
from fastapi.responses import Response, StreamingResponse
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from serving.calls import JSON, SSE, EngineCall, Kind, Reply, Usage
from serving.errors import ENGINE_UNAVAILABLE, ApiError, invalid_request, sse_event
from serving.sglang_plugin.recorder import kv_hints, warm_up_hints
from serving.validation import validated

logger = logging.getLogger("forecache")

_CONTEXT_TOO_LONG = re.compile(r"longer than the model's context|maximum context length|maximum allowed length")
_PARAMETERS: tuple[tuple[re.Pattern[str], str | None], ...] = (
    (re.compile(r"^([a-z]+(?:_[a-z]+)*) (?:must|should|cannot|requires?|is not|are not)"), None),
    (re.compile(r"^Messages? |content type"), "messages"),
    (re.compile(r"watermark"), "watermark"),
    (re.compile(r"cannot be prepared for the model"), "chat_template_kwargs"),
    (re.compile(r"[Ss]top strings"), "stop"),
    (re.compile(r"json grammar|json_schema|JSON schema", re.IGNORECASE), "response_format"),
    (re.compile(r"regex grammar"), "regex"),
    (re.compile(r"ebnf", re.IGNORECASE), "ebnf"),
    (re.compile(r"LoRA"), "lora_path"),
    (re.compile(r"hidden states"), "return_hidden_states"),
    (re.compile(r"custom logit processor"), "custom_logit_processor"),
    (re.compile(r"[Tt]ool"), "tools"),
)
_SSE_ERROR = 'data: {"error":'
_SSE_USAGE = '"prompt_tokens_details":{'


@dataclass(slots=True)
class CallContext:
    """Stands where SGLang expects the HTTP request: it carries the call down and what became of it up.

    Attributes:
        usage: filled in as the call goes.
        on_begun: told once, when the call goes to the engine, its prompt's token ids; none if they are not known yet.
        priority: of a call whose client gave none; None: the engine does not schedule by priority.
        cached: for each sequence of the call, its cached prompt tokens by tier.
    """

    call: EngineCall
    usage: Usage = field(default_factory=Usage)
    on_begun: Callable[[Sequence[int]], object] = lambda prompt: None
    priority: int | None = None
    cached: dict[int, dict[str, int]] = field(default_factory=dict)
    _lengths: dict[int, tuple[int, int]] = field(default_factory=dict)

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
        self._lengths[output.get("index", position)] = meta.get("prompt_tokens", 0), meta.get("completion_tokens", 0)
        split = meta.get("cached_tokens_details") or {"device": meta.get("cached_tokens", 0)}
        self.cached[output.get("index", position)] = {
            tier: count for tier, count in split.items() if isinstance(count, int)
        }

    def begin(self, adapted: Any) -> None:
        """The call is valid and goes to the engine as `adapted`: puts id and identity there, over whatever the client
        sent, and a priority if it sent none."""
        adapted.rid = self.call.rid
        adapted.kv_hints = kv_hints(self.call.identity, self.call.rid)
        if adapted.priority is None:
            adapted.priority = self.priority
        ids = adapted.input_ids or ()
        if ids and isinstance(ids[0], list):  # several prompts in one call; the first stands for them
            ids = ids[0]
        self.usage.prompt_tokens = len(ids)
        self.usage.began = True
        self.on_begun(ids)

    def settle(self) -> None:
        """The call is over, in whatever way: what is known of its cost is final."""
        usage, split = self.usage, self.split()
        n = self.call.body.get("n") or 1
        prompts = [prompt for position, (prompt, _) in self._lengths.items() if position % n == 0]
        usage.prompt_tokens = sum(prompts) or usage.prompt_tokens
        usage.output_tokens = sum(output for _, output in self._lengths.values())
        usage.hit_device, usage.hit_host = split["device"], split["host"]
        usage.hit_storage = split.get("storage", 0)

    def split(self) -> dict[str, int]:
        """Cached prompt tokens by tier, over the call's prompts; the `n` answers to one prompt count once."""
        n = self.call.body.get("n") or 1
        total = {"device": 0, "host": 0}
        for position, tiers in self.cached.items():
            if position % n == 0:
                for tier, count in tiers.items():
                    total[tier] = total.get(tier, 0) + count
        return total


class RecordingTokenizerManager(TokenizerManager):
    """SGLang's tokenizer manager; what it yields for one of our calls is noted in the call's context."""

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        async for output in super().generate_request(obj, request):
            if isinstance(request, CallContext):
                for position, one in enumerate(output if isinstance(output, list) else [output]):
                    request.note(one, position)
            yield output


class _Chat(OpenAIServingChat):
    def _convert_to_internal_request(self, request: Any, raw_request: Any = None) -> tuple[Any, Any]:
        with _clients_fault():
            adapted, processed = super()._convert_to_internal_request(request, raw_request)
        raw_request.begin(adapted)
        return adapted, processed


class _Completion(OpenAIServingCompletion):
    def _convert_to_internal_request(self, request: Any, raw_request: Any = None) -> tuple[Any, Any]:
        with _clients_fault():
            adapted, processed = super()._convert_to_internal_request(request, raw_request)
        raw_request.begin(adapted)
        return adapted, processed


@contextlib.contextmanager
def _clients_fault() -> Iterator[None]:
    """What fails while a request is rendered and tokenized is in the request: a 400, where SGLang says 500."""
    try:
        yield
    except (HTTPException, ValueError):
        raise
    except Exception as error:
        logger.warning("forecache: a request could not be prepared", exc_info=error)
        raise ValueError(f"the request cannot be prepared for the model: {type(error).__name__}: {error}") from error


class OpenAIApi:
    """Answers calls with one engine.

    Args:
        tokenizer_manager: the engine's, a `RecordingTokenizerManager`.
        template_manager: the engine's.
        engine_id: what replies name as their engine.
        retry_after_s: for replies that the engine was too busy for.
    """

    def __init__(self, tokenizer_manager: Any, template_manager: Any, engine_id: str, retry_after_s: int) -> None:
        self._tokenizer_manager = tokenizer_manager
        self._engine_id = engine_id
        self._retry_after_s = retry_after_s
        self._vocab_size: int = tokenizer_manager.model_config.vocab_size
        self._handlers: dict[Kind, tuple[Any, Any]] = {
            "chat": (ChatCompletionRequest, _Chat(tokenizer_manager, template_manager)),
            "completion": (CompletionRequest, _Completion(tokenizer_manager, template_manager)),
        }

    async def answer(
        self,
        call: EngineCall,
        usage: Usage | None = None,
        on_begun: Callable[[Sequence[int]], object] = lambda prompt: None,
        priority: int | None = None,
    ) -> AsyncGenerator[Reply | bytes, None]:
        """A `Reply`, then for a stream its further chunks. Errors are replies, too.

        Args:
            usage: filled in as the call goes, and final when this ends.
            on_begun, priority: as `CallContext` has them.
        """
        context = CallContext(call, usage or Usage(), on_begun, priority)
        try:
            request_class, handler = self._handlers[call.kind]
            request = validated(request_class, call.body, self._vocab_size)
            response = await handler.handle_request(request, context)
            if isinstance(response, StreamingResponse):
                async for part in self._stream(response, context):
                    yield part
                return
            if isinstance(response, Response):
                raise self._from_sglang(orjson.loads(response.body), response.status_code, call.kind)
            body = response.model_dump(mode="json")
            if (usage := body.get("usage")) and usage.get("prompt_tokens_details") is not None:
                usage["prompt_tokens_details"] |= context.split()
            yield Reply(200, JSON, self._engine_id, orjson.dumps(body), prompt_tokens=context.usage.prompt_tokens)
        except ApiError as error:
            yield self.error_reply(error)
        finally:
            context.settle()

    async def warm_up(self, ids: list[int], rid: str) -> None:
        """Computes a prefix that nobody has asked for, and generates nothing of use.

        Raises:
            ValueError: SGLang does not take it.
        """
        request = GenerateReqInput(
            input_ids=ids, sampling_params={"max_new_tokens": 1, "temperature": 0}, rid=rid, kv_hints=warm_up_hints(rid)
        )
        async for _ in self._tokenizer_manager.generate_request(request):
            pass

    def error_reply(self, error: ApiError) -> Reply:
        return Reply(
            error.status,
            JSON,
            self._engine_id,
            orjson.dumps(error.body()),
            retry_after_s=error.retry_after_s,
            lost=error.code == ENGINE_UNAVAILABLE,
        )

    async def _stream(self, response: StreamingResponse, context: CallContext) -> AsyncIterator[Reply | bytes]:
        started = False
        async for chunk in response.body_iterator:
            text = chunk if isinstance(chunk, str) else bytes(chunk).decode()
            if text.startswith(_SSE_ERROR):
                error = orjson.loads(text.removeprefix("data: "))["error"]
                error = self._from_sglang(error, error.get("code") or 500, context.call.kind)
                if not started:  # nothing has been sent: an error of its own, not an event of a stream
                    raise error
                text = sse_event(error).decode()
            elif _SSE_USAGE in text:
                text = _sse_with_split(text, context.split())
            data = text.encode()
            counted = context.usage.prompt_tokens
            yield data if started else Reply(200, SSE, self._engine_id, data, prompt_tokens=counted)
            started = True

    def _from_sglang(self, error: Mapping[str, Any], status: int, kind: Kind) -> ApiError:
        """SGLang's error object as ours."""
        error = error.get("error", error)
        message = str(error.get("message", "the engine gave no reason")).strip()
        message = message.replace("max_new_tokens", "max_tokens").replace("min_new_tokens", "min_tokens")
        if _CONTEXT_TOO_LONG.search(message):
            field = "messages" if kind == "chat" else "prompt"
            return invalid_request(message, param=field, code="context_length_exceeded")
        if status >= 500 and status != 503:
            logger.error("forecache: SGLang answered %d: %s", status, message)
        retry = self._retry_after_s if status in (429, 503) else None
        return ApiError(status, message, param=error.get("param") or _named_in(message), retry_after_s=retry)


def _sse_with_split(text: str, split: dict[str, int]) -> str:
    event = orjson.loads(text.removeprefix("data: "))
    details = (event.get("usage") or {}).get("prompt_tokens_details")
    if details is None:
        return text
    details |= split
    return f"data: {orjson.dumps(event).decode()}\n\n"


def _named_in(message: str) -> str | None:
    """The parameter that SGLang's message is about, for SGLang names it in prose alone."""
    for pattern, param in _PARAMETERS:
        if match := pattern.search(message):
            return param or match[1]
    return None
