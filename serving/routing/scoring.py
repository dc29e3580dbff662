"""What a call costs on an engine, in seconds: its own work, who is before it, and what it pushes out. Pure."""

from __future__ import annotations

from cache_actor.snapshots import NOTHING, Resident
from serving.routing.known_engine import KnownEngine


def to_compute(prompt_tokens: int, there: Resident, anchor_tokens: int) -> tuple[int, int]:
    """Of a prompt, the tokens that are computed and those that are loaded from the host.

    What is on its way to the device counts as being there.
    """
    device = min(prompt_tokens, max(there.device + min(there.coming, there.host), anchor_tokens))
    host = min(prompt_tokens - device, there.host)
    return prompt_tokens - device - host, host


def cost_s(
    engine: KnownEngine,
    prompt_tokens: int,
    there: Resident,
    anchor_tokens: int,
    added_tokens: int,
    new_tokens: int,
    in_flight: int,
) -> float:
    """Seconds that a call costs on an engine: its own work, that of those before it, and crowding.

    Crowding is what coming calls, its workflow's and others', lose of contexts that do not all fit. Where all fit
    nothing is lost; where they do not, about as many tokens as are added are computed again at each call, whoever's
    they are. Contexts grow, so the step between the two is a smooth one.

    Args:
        there, anchor_tokens: what the engine has of the workflow, and of the agent's anchor.
        added_tokens: what is there because of this workflow: its context, and anchors that nobody else there uses.
        new_tokens: of these, what `engine.needed` does not count yet.
        in_flight: calls there as far as is known here.
    """
    rates = engine.rates
    if there is NOTHING:  # as on most engines
        computed, loaded = prompt_tokens - anchor_tokens if anchor_tokens < prompt_tokens else 0, 0
    else:
        computed, loaded = to_compute(prompt_tokens, there, anchor_tokens)
    square = ((engine.needed + new_tokens) / engine.capacity) ** 2
    lost = rates.horizon_calls * added_tokens * square / (1 + square)
    running = engine.running if engine.running > in_flight else in_flight
    prefill_s = rates.prefill_token_s * (computed + engine.pending + lost)
    return prefill_s + rates.host_token_s * loaded + rates.running_call_s * running
