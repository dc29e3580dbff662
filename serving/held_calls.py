"""A call from the door to its end: held as long as it has to be, then what the engine says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

from cache_actor.admission import Queued
from serving.admission import Admission, Ticket
from serving.calls import SSE, EngineCall, Reply
from serving.engine_calls import EngineCalls
from serving.errors import ApiError


async def answer(
    call: EngineCall, ticket: Ticket, door: Admission, engines: EngineCalls, keep_alive_s: float
) -> AsyncGenerator[Reply | bytes, None]:
    """A `Reply`, then for a stream its further chunks.

    A client that wants a stream and has to wait gets one at once, of comments; the engine's reply is then a part of it.

    Raises:
        ApiError: the call cannot be answered.
    """
    try:
        if ticket.held:
            if call.body.get("stream") is True:
                yield Reply(200, SSE, "", _comment(door.queued(call.identity.workflow)))
                while not await door.goes(ticket, keep_alive_s):
                    yield _comment(door.queued(call.identity.workflow))
                yield f": let in x-forecache-queue-ms={ticket.queue_ms}\n\n".encode()
            else:
                await door.goes(ticket)
        async with contextlib.aclosing(engines.parts(replace(call, wanted=ticket.engine))) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    door.placed(call.identity.workflow, part.engine)
                    ticket.lasting = part.media_type != SSE and _named(call)
                yield part
        ticket.lasting = _named(call)
    except ApiError:
        ticket.lasting = _named(call)  # the client is still there, and may try again
        raise


def _named(call: EngineCall) -> bool:
    """Whether a client says what belongs together, and so is expected to go on."""
    return call.identity.source != "inferred"


def _comment(queued: Queued | None) -> bytes:
    """What clients of server-sent events pass over, and people can read."""
    if queued is None:
        return b": queued\n\n"
    estimate = "" if queued.estimate_s is None else f" estimate_s={queued.estimate_s:.0f}"
    return f": queued place={queued.place} waiting={queued.waiting}{estimate}\n\n".encode()
