"""What a request must not hold, checked before SGLang sees it.

SGLang checks most of what a client can send, but some values pass its front and then end its scheduler process, which
ends every call of the engine: token ids that the model has not, numbers that no tensor can hold. Those stop here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from serving.errors import ApiError, invalid_request

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1

# For each field the least and the greatest integer; the greatest are OpenAI's where OpenAI has one.
INTEGER_BOUNDS: dict[str, tuple[int, int]] = {
    "n": (1, 128),
    "best_of": (1, 128),
    "max_tokens": (0, _INT32),
    "max_completion_tokens": (0, _INT32),
    "min_tokens": (0, _INT32),
    "top_logprobs": (0, 20),
    "logprobs": (0, 20),
    "top_k": (-1, _INT32),
    "seed": (-_INT64 - 1, _INT64),
    "priority": (-_INT32, _INT32),
    "routed_experts_start_len": (0, _INT32),
}
FLOAT_BOUND = 1e6
_TOKEN_FIELDS = ("input_ids", "prompt", "stop_token_ids")


def validated(request_class: type[BaseModel], body: Mapping[str, Any], vocab_size: int) -> Any:
    """The body as SGLang's request model.

    Args:
        request_class: SGLang's model of the endpoint.
        body: the client's JSON.
        vocab_size: token ids are below it.

    Raises:
        ApiError: a field that does not fit (400, with its name and value).
    """
    _check_numbers(body)
    for field in _TOKEN_FIELDS:
        _check_tokens(field, body.get(field), vocab_size)
    _check_prompt(body.get("prompt"))
    _check_patterns(body.get("stop_regex"))
    try:
        return request_class.model_validate(body)
    except ValidationError as error:
        raise _from_pydantic(error) from error


def _check_numbers(body: Mapping[str, Any]) -> None:
    for field, value in body.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = INTEGER_BOUNDS.get(field, (-FLOAT_BOUND, FLOAT_BOUND))
        if not (math.isfinite(value) and low <= value <= high):
            raise invalid_request(f"{field} cannot be {value}; it is between {low} and {high}", param=field)
    for token, bias in (body.get("logit_bias") or {}).items() if isinstance(body.get("logit_bias"), Mapping) else ():
        if not str(token).isdigit():
            raise invalid_request(f"logit_bias cannot have the key {token!r}; keys are token ids", param="logit_bias")
        if isinstance(bias, int | float) and not abs(bias) <= 100:
            raise invalid_request(f"logit_bias.{token} cannot be {bias}; it is between -100 and 100", "logit_bias")


def _check_tokens(field: str, value: Any, vocab_size: int) -> None:
    for token in _flat(value) if isinstance(value, list) else ():
        if isinstance(token, int | float) and not 0 <= token < vocab_size:
            raise invalid_request(f"{field} cannot hold the token {token}; ids are 0 to {vocab_size - 1}", param=field)


def _check_prompt(prompt: Any) -> None:
    """SGLang checks a lone prompt and not the prompts of a batch."""
    if prompt in ("", []) or (isinstance(prompt, list) and any(one in ("", []) for one in prompt)):
        raise invalid_request("prompt cannot be empty, nor can one of several", param="prompt")


def _check_patterns(patterns: Any) -> None:
    for pattern in [patterns] if isinstance(patterns, str) else patterns if isinstance(patterns, list) else ():
        try:
            re.compile(pattern)
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise invalid_request(f"stop_regex cannot be {pattern!r}: {error}", param="stop_regex") from error


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _from_pydantic(error: ValidationError) -> ApiError:
    # Where several forms are allowed each has its errors; the one that fits best went deepest before it failed.
    # Their locations name the forms, too; a client knows fields and indices.
    first = max(error.errors(include_url=False, include_context=False), key=lambda one: len(_path(one["loc"])))
    known = _path(first["loc"])
    param = ".".join(known) or None
    message = first["msg"].removeprefix("Value error, ")
    return invalid_request(f"{param}: {message}" if param else message, param=param)


def _path(location: tuple[int | str, ...]) -> list[str]:
    return [str(part) for part in location if isinstance(part, int) or _is_field(part)]


def _is_field(part: str) -> bool:
    return part.isidentifier() and part.islower() and part not in ("str", "int", "float", "bool", "list", "dict")
