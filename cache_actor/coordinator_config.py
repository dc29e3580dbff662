"""The `coordinator:` block of a config."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from cache_actor.admission import controller_names
from cache_actor.admission.base import DEFAULT_CONTROLLER
from cache_actor.runtime import RuntimePolicy
from cache_actor.runtime_policies import make_runtime_policies


class CoordinatorConfig(BaseModel):
    """Who turns forecasts into plans."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="Without it engines go by recency and by what has ended, alone.")
    mode: Literal["on", "shadow", "off"] = Field(
        "on",
        description="`shadow`: plan, account and log, and change nothing; `off`: the kill switch. To be changed while "
        "it runs: `forecache coordinator MODE`.",
    )
    runtime_policies: tuple[str, ...] = Field(
        ("kv-reuse", "kv-prefetch", "anchor-warm-up", "call-order", "admission"),
        description="What is plugged into the agent runtime layer: names, or `package.module:Class`.",
    )
    admission: str = Field(
        DEFAULT_CONTROLLER,
        description="What finds how many workflows run at once on an engine: "
        + ", ".join(f"`{name}`" for name in controller_names())
        + ". It goes by what the engine computes again, which only `cache.backend: forecache` tells.",
    )
    admission_parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of `admission`.")
    discount: float = Field(0.8, gt=0, le=1, description="Of a call one step later, in the look-ahead value (gamma).")
    heartbeat_s: PositiveFloat = Field(1.0, description="An engine reports at least so often, in seconds.")
    coalesce_s: float = Field(
        0.005, ge=0, le=1, description="How long an engine gathers events before it reports them, in seconds."
    )
    period_s: float = Field(
        0.2, ge=0, le=1, description="An engine reports no oftener than this, in seconds; after a pause, at once."
    )
    over_s: float = Field(
        0.25, ge=0, le=1, description="Calls that are over are reported with other news, or after so long, in seconds."
    )
    plan_ttl_s: PositiveFloat = Field(
        10.0, description="How long an engine goes on with forecasts that nobody renews, in seconds."
    )
    forecast_wait_s: float = Field(
        0.05, ge=0, le=5, description="How long an answer to an engine may wait for forecasts, in seconds."
    )
    forecast_limit_s: PositiveFloat = Field(
        2.0, description="A predictor that has not answered within so many seconds is left alone for one."
    )
    max_workflows: PositiveInt = Field(
        100_000, description="Living workflows that are known; beyond it the one heard of longest ago is forgotten."
    )

    @model_validator(mode="after")
    def _policies_exist(self) -> Self:
        self.make_policies()
        if self.plan_ttl_s <= 2 * self.heartbeat_s:
            raise ValueError(
                f"plan_ttl_s is {self.plan_ttl_s:g}: give more than two heartbeats ({self.heartbeat_s:g} s each), or "
                "forecasts lapse between two reports"
            )
        return self

    def make_policies(self) -> list[RuntimePolicy]:
        """What is plugged into the agent runtime layer, as configured.

        Raises:
            ValueError: see `make_runtime_policies`.
        """
        admission = {"controller": self.admission, "parameters": self.admission_parameters}
        return make_runtime_policies(self.runtime_policies, {"admission": admission})
