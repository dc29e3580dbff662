"""What work costs an engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


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

        for name in ("running_call_s", "horizon_calls"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; give at least 0")

    def measured(self, prefill_token_s: float, running_call_s: float) -> Rates:
        """These, with what was measured instead, where it was (above 0)."""
        if not prefill_token_s > 0 and not running_call_s > 0:
            return self
        prefill = prefill_token_s if prefill_token_s > 0 else self.prefill_token_s
        return replace(
            self,
            prefill_token_s=prefill,
            host_token_s=min(self.host_token_s, prefill),
            running_call_s=running_call_s if running_call_s > 0 else self.running_call_s,
        )
