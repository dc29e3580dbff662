"""Every error a client can see, as OpenAI's error object. No stack trace ever crosses HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


# SGLang answers 503, too, with which it says no more than that it is busy: a full queue, a call that has waited for
# too long or made way for another.
ENGINE_UNAVAILABLE = "engine_unavailable"


@dataclass(slots=True, eq=False)  # an exception has to be hashable
class ApiError(Exception):
    """An error with its HTTP status. `retry_after_s` becomes the `Retry-After` header."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return ApiError, (self.status, self.message, self.code, self.param, self.retry_after_s)

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, fallback),
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_s)} if self.retry_after_s is not None else {}


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def engine_down(reason: str, retry_after_s: int) -> ApiError:
    """503 for a call that an engine could not finish; safe to send again."""
    return ApiError(503, f"the engine is down: {reason}", code=ENGINE_UNAVAILABLE, retry_after_s=retry_after_s)


def sse_event(error: ApiError) -> bytes:
    """An error that comes after a stream has begun."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"
