"""What a call costs on an engine, in seconds: its own work, who is before it, and what it pushes out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cache_actor.snapshots import Resident
from serving.routing.known_engine import NOTHING, KnownEngine


@dataclass(frozen=True, slots=True)
class Rates:
    """What work costs, in seconds.

    Attributes:
        prefill_token_s: to compute a prompt token.
        host_token_s: to load one from the host instead.
        running_call_s: what each call that generates costs another one.
        horizon_calls: calls that a workflow is expected to make yet, each of which finds less where too much lives.
    """

    prefill_token_s: float = 3.4e-4
    host_token_s: float = 6.4e-6
    running_call_s: float = 0.05
    horizon_calls: float = 8.0

    def __post_init__(self) -> None:
        if not self.prefill_token_s > 0 or not 0 <= self.host_token_s <= self.prefill_token_s:
            raise ValueError(
                f"prefill_token_s is {self.prefill_token_s:g} and host_token_s {self.host_token_s:g}: "
                "give seconds, and no more for a token from the host than for one that is computed"
            )


def to_compute(prompt_tokens: int, there: Resident, anchor_tokens: int) -> tuple[int, int]:
    """Of a prompt, the tokens that are computed and those that are loaded from the host.

    What is on its way to the device counts as being there.
    """
    device = min(prompt_tokens, max(there.device + min(there.coming, there.host), anchor_tokens))
    host = min(prompt_tokens - device, there.host)
    return prompt_tokens - device - host, host


def cost_s(
    rates: Rates,
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
    if there is NOTHING:  # as on most engines
        computed, loaded = prompt_tokens - anchor_tokens if anchor_tokens < prompt_tokens else 0, 0
    else:
        computed, loaded = to_compute(prompt_tokens, there, anchor_tokens)
    square = ((engine.needed + new_tokens) / engine.capacity) ** 2
    lost = rates.horizon_calls * added_tokens * square / (1 + square)
    running = engine.running if engine.running > in_flight else in_flight
    prefill_s = rates.prefill_token_s * (computed + engine.pending + lost)
    return prefill_s + rates.host_token_s * loaded + rates.running_call_s * running
