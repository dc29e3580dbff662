"""What an engine says of a call, between whoever hears it from SGLang and whoever passes it on to the ingress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from serving.calls import Reply
from serving.errors import ApiError, sse_event


class Parts:
    """What the engine has said of one call and nobody has taken yet. Chunks that pile up are taken as one."""

    def __init__(self) -> None:
        self._untaken: list[Reply | bytes] = []
        self._changed = asyncio.Event()
        self._begun = False
        self._ended = False

    def put(self, part: Reply | bytes) -> None:
        if not self._ended:
            self._begun = True
            self._untaken.append(part)
            self._changed.set()

    def fail(self, error: ApiError, as_reply: Callable[[ApiError], Reply]) -> None:
        """Ends the call with an error: as its reply, or as the last event of a stream that has begun."""
        self.put(sse_event(error) if self._begun else as_reply(error))
        self.end()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Reply | bytes]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            untaken, self._untaken = self._untaken, []
            chunks = [part for part in untaken if isinstance(part, bytes)]
            for part in untaken:
                if isinstance(part, Reply):
                    yield part
            if chunks:
                yield b"".join(chunks)
            if self._ended and not self._untaken:
                return
