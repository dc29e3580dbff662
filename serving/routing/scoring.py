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
    context_tokens: int,
    comes: bool,
    in_flight: int,
) -> float:
    """Seconds that a call costs on an engine: its own work, that of those before it, and crowding.

    Crowding is what its workflow's coming calls and all others lose of contexts that do not all fit. A context where
    all fit costs nothing; where they do not, about as many tokens as it has are computed again at each of its calls,
    whoever's they are. Contexts grow, so the step between the two is a smooth one.

    Args:
        there, anchor_tokens: what the engine has of the workflow, and of the agent's anchor.
        context_tokens: of the workflow, or a mean one if that is longer.
        comes: whether the workflow would be new there, so that `engine.needed` is without it.
        in_flight: calls there as far as is known here.
    """
    if there is NOTHING:  # as on most engines
        computed, loaded = prompt_tokens - anchor_tokens if anchor_tokens < prompt_tokens else 0, 0
    else:
        computed, loaded = to_compute(prompt_tokens, there, anchor_tokens)
    needed = engine.needed + context_tokens if comes else engine.needed
    square = (needed / engine.capacity) ** 2
    lost = rates.horizon_calls * context_tokens * square / (1 + square)
    running = engine.running if engine.running > in_flight else in_flight
    prefill_s = rates.prefill_token_s * (computed + engine.pending + lost)
    return prefill_s + rates.host_token_s * loaded + rates.running_call_s * running
