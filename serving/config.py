"""The pydantic models of `args:` in a Serve config file. Each field's description is its reference."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.policies import make_policy
from serving.routing import make_router, router_names


class StrictModel(BaseModel):
    """Refuses unknown keys, so that a typing error in a config file is an error and not a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RandomQwen3Config(StrictModel):
    """Sizes of the built-in `random-qwen3`: a Qwen3 with random weights, for tests and cache benchmarks.

    The defaults have the ratio of prefill to decode cost of a 14B model on a workstation GPU.
    """

    seed: int = Field(0, description="Seed of the weights; equal sizes and seed give equal weights.")
    vocab_size: PositiveInt = Field(2048, ge=300, description="Tokens of the byte-level BPE vocabulary.")
    hidden_size: PositiveInt = 256
    intermediate_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 4
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    head_dim: PositiveInt = 64
    max_position_embeddings: PositiveInt = Field(32768, description="Context length, in tokens.")


class ModelConfig(StrictModel):
    """Which model the engines serve."""

    source: str = Field(
        "smollm2-135m",
        min_length=1,
        description="A local folder, a hub id, or a built-in name: `smollm2-135m`, `random-qwen3`.",
    )
    name: str | None = Field(
        None, min_length=1, description="The name clients use; by default the last part of `source`."
    )
    random: RandomQwen3Config = Field(
        default_factory=lambda: RandomQwen3Config(), description="Sizes of `random-qwen3`; ignored otherwise."
    )

    @property
    def served_name(self) -> str:
        return self.name or self.source.rstrip("/").rsplit("/", 1)[-1]


class HealthConfig(StrictModel):
    """When an engine counts as stuck. It is judged by progress, never by how long a call takes."""

    stall_s: PositiveFloat = Field(
        60.0, description="Seconds without a sign of life from a scheduler that has nothing long to do."
    )
    stall_s_per_token: float = Field(
        0.05, ge=0, description="Further patience per token of the forward that runs, in seconds."
    )
    no_progress_s: PositiveFloat = Field(
        300.0, description="Seconds in which calls wait or run and no forward starts, though the scheduler lives."
    )
    check_period_s: PositiveFloat = Field(2.0, description="How often Ray Serve asks, in seconds.")


class DeploymentConfig(StrictModel):
    """How Ray Serve runs the engines."""

    num_replicas: PositiveInt = Field(1, description="Engines; ignored with `autoscaling_config`.")
    autoscaling_config: dict[str, Any] | None = Field(
        None,
        description="Passed to Ray Serve: `min_replicas`, `max_replicas`, … Without a `policy` in it the number of "
        "engines follows `scaling`.",
    )
    ingress_replicas: PositiveInt = Field(
        1,
        description="Ingresses. With several all calls that name a workflow in their headers meet the same one.",
    )
    num_cpus: PositiveFloat = Field(1, description="CPUs that Ray reserves for an engine.")
    num_gpus: int | None = Field(
        None,
        ge=0,
        description="GPUs of an engine. By default one for each of its ranks (`tp_size × pp_size × dp_size`), 0 with "
        "`engine.device: cpu`. Without a device the machine that builds the application decides, which on a cluster "
        "may be a head node that has no GPU: there say `device: cuda`.",
    )
    cpu_threads: PositiveInt | None = Field(
        None, description="Compute threads of an engine; by default, on CPUs, the cores shared by `num_replicas`."
    )
    resources: dict[str, float] = Field(default_factory=dict, description="Custom Ray resources of an engine.")
    max_ongoing_requests: PositiveInt = Field(256, description="Calls that one engine is given at once.")
    max_queued_requests: int = Field(
        1024, ge=1, description="Calls that wait at an ingress for an engine; beyond it a call is answered with 429."
    )
    graceful_shutdown_timeout_s: PositiveFloat | None = Field(
        None,
        description="Seconds a stopping engine may take to finish its calls, which are cut then. By default 20, and "
        "with `autoscaling_config`, where engines stop under load, 3600.",
    )
    env_vars: dict[str, str] = Field(default_factory=dict, description="Environment of the engine's processes.")

    @property
    def drain_s(self) -> float:
        """`graceful_shutdown_timeout_s`, or its default."""
        if self.graceful_shutdown_timeout_s is not None:
            return self.graceful_shutdown_timeout_s
        return 20.0 if self.autoscaling_config is None else 3600.0


class ScalingConfig(StrictModel):
    """How many engines there are, with `deployment.autoscaling_config`: what one is to carry, and when one goes."""

    workflows: PositiveFloat = Field(
        32, description="Workflows for an engine: those that have called within the last minute."
    )
    calls: PositiveFloat = Field(
        32, description="Calls in flight for an engine, those that wait for one and those that are forecast included."
    )
    pending_tokens: PositiveFloat = Field(
        32_768, description="Tokens of prompts for an engine that wait to be computed."
    )
    active_share: float = Field(
        0.9, gt=0, le=1, description="Share of an engine's device pool for what living workflows have in it."
    )
    spare: float = Field(
        0.3, ge=0, lt=1, description="An engine goes only if the others then have this share of all that to spare."
    )
    down_after_s: PositiveFloat = Field(
        300.0, description="So long must fewer engines have been enough before one goes, in seconds."
    )
    zero_after_s: PositiveFloat = Field(
        900.0,
        description="So long must nothing have been to do before the last one goes, in seconds; `min_replicas: 0`.",
    )


class LimitsConfig(StrictModel):
    """What the ingress accepts."""

    max_body_bytes: PositiveInt = Field(32 * 2**20, description="Largest request body; beyond it 413.")
    max_inflight_requests: PositiveInt = Field(
        4096, description="Calls inside an ingress at once, without those of new workflows that wait; beyond it 429."
    )
    retry_after_s: PositiveInt = Field(2, description="What `Retry-After` says with a 429 or a 503, in seconds.")
    engine_wait_s: PositiveFloat = Field(
        5.0, description="Seconds that a call waits while no engine is running, before its 503."
    )


def _yaml_flag(value: Any) -> Any:
    """YAML reads a bare `on` or `off` as a flag."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


AdmissionMode = Literal["on", "off"] | PositiveInt


class AdmissionConfig(StrictModel):
    """How many workflows run at once, and what becomes of those that wait."""

    mode: Annotated[AdmissionMode, BeforeValidator(_yaml_flag)] = Field(
        "on",
        description="`on`: as many as the coordinator finds that an engine carries; `off`: all; a number: so many on "
        "each engine. To be changed while it runs: `forecache admission MODE`.",
    )
    max_wait_s: PositiveFloat = Field(
        300.0,
        description="Nobody waits longer, in seconds: who has waited so long gets in beyond the limit, and a new "
        "workflow that is expected to wait for more than three quarters of it is answered with 429.",
    )
    max_waiting: PositiveInt = Field(
        2048, description="Calls of new workflows that wait at an ingress at once; beyond it 429."
    )
    keep_alive_s: PositiveFloat = Field(
        5.0, description="A streaming client that waits is sent a comment so often, in seconds."
    )
    stale_after_s: PositiveFloat = Field(
        10.0, description="When the coordinator has said nothing for so long, everybody comes in. In seconds."
    )
    idle_s: PositiveFloat = Field(
        60.0,
        description="A workflow without a call for so long gives its place to one that waits, in seconds; one that "
        "nobody has named, or whose client has gone, at once.",
    )
    pause_after_s: float = Field(
        3.0, ge=0, description="So long more may run than the limit says before the cheapest are paused, in seconds."
    )
    weights: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="Shares of the places by tenant, for those that do not weigh 1."
    )


class SessionHeaders(StrictModel):
    """The request headers in which one vendor's clients name their session (matched without regard to case)."""

    session: str
    child: str | None = Field(None, description="Session of a sub-agent; when sent, `session` is its parent.")
    parent: str | None = None
    final: str | None = None
    agent: str | None = None


VENDOR_HEADERS: tuple[SessionHeaders, ...] = (
    SessionHeaders(session="x-dynamo-session-id", parent="x-dynamo-parent-session-id", final="x-dynamo-session-final"),
    SessionHeaders(
        session="x-claude-code-session-id",
        child="x-claude-code-agent-id",
        parent="x-claude-code-parent-agent-id",
    ),
    SessionHeaders(session="thread-id", parent="x-codex-parent-thread-id", agent="x-openai-subagent"),
    SessionHeaders(session="session_id", parent="x-codex-parent-thread-id", agent="x-openai-subagent"),
    SessionHeaders(session="x-opencode-session", parent="x-opencode-parent-session", agent="x-opencode-subagent"),
)


class IdentityConfig(StrictModel):
    """How a request is told its workflow and its agent, and how long a workflow lives."""

    vendor_headers: tuple[SessionHeaders, ...] = Field(
        VENDOR_HEADERS, description="After our own and the `x-session-id` headers, in this order."
    )
    idle_timeout_s: PositiveFloat = Field(
        900.0, description="Seconds without a call after which a workflow counts as ended."
    )
    max_workflows: PositiveInt = Field(
        100_000, description="Workflows that are remembered; beyond it the oldest ended, then the longest idle go."
    )
    max_conversations: PositiveInt = Field(
        50_000, description="Conversations that untagged calls are matched against; the oldest are forgotten."
    )


class CacheConfig(StrictModel):
    """What the engines' KV cache keeps."""

    backend: Literal["forecache", "sglang"] = Field(
        "forecache", description="`forecache`: the cache knows workflows. `sglang`: SGLang's own, untouched."
    )
    policy: str = Field("reuse", description="Eviction policy: `reuse`, `lru`, `lifecycle`, `lookahead`, `steps`, …")
    parameters: dict[str, Any] = Field(default_factory=dict, description="Parameters of the policy.")
    tiers: tuple[Literal["device", "host"], ...] = Field(
        ("device", "host"), description="Tiers that the policy steers; another goes by recency."
    )
    max_workflows: PositiveInt = Field(
        10_000, description="Active workflows an engine knows; beyond it the one without a call for longest is ended."
    )
    prefetch: Literal["off", "conservative", "aggressive"] = Field(
        "conservative",
        description="Loads from the host ahead of need: into free and retired space, or (for ablations) any.",
    )
    prefetch_reserve_tokens: int | None = Field(
        None, ge=0, description="Device tokens that prefetching leaves free; by default one prefill chunk."
    )
    prefetch_tokens_per_s: PositiveFloat = Field(
        50_000.0, description="What the link from the host moves, in tokens per second, until loads have been measured."
    )

    storage_gb: PositiveFloat = Field(
        100.0,
        description="What `engine.file_storage_path` may hold, all models and engines together, in GB; what was used "
        "longest ago goes. A twentieth of its file system stays free in any case.",
    )
    learned_dir: str | None = Field(
        None,
        description="Folder for what `reuse` has learned, a small file a model, safe to lose; by default in "
        "Forecache's cache folder; empty: nothing is kept.",
    )
    learned_period_s: PositiveFloat = Field(60.0, description="How often what was learned is saved, in seconds.")

    @model_validator(mode="after")
    def _policy_exists(self) -> Self:
        make_policy(self.policy, self.parameters)
        return self


class PredictorConfig(StrictModel):
    """Who forecasts which agents come next, and how it learns."""

    enabled: bool = Field(True, description="Whether a predictor runs.")
    num_replicas: PositiveInt = Field(
        1, description="Replicas; a coordinator asks one of them, which learns from it, and another if that is gone."
    )
    checkpoint: str = Field(
        "",
        description="Folder written by `forecache train`, to start with; by default the predictor that served last.",
    )
    traces_dir: str | None = Field(
        None,
        description="Folder for workflows that have ended and the predictor trained on them, at most 256 MB of "
        "workflows; by default `predictor/` and the model's name in Forecache's cache folder; empty: nothing is kept.",
    )
    learn: bool = Field(True, description="Whether predictors are trained while serving, in a process of low priority.")
    retrain_max_s: PositiveFloat = Field(120.0, description="Seconds after which such a training is brought to an end.")
    retrain_threads: PositiveInt = Field(1, description="Compute threads of such a training.")
    max_batch_size: PositiveInt = Field(64, description="Requests that are answered together.")
    batch_wait_s: float = Field(
        0.002, ge=0, description="How long a request waits for others to be answered with, in seconds."
    )
    max_ongoing_requests: PositiveInt = Field(1024, description="Requests that one replica is given at once.")


class RouterConfig(StrictModel):
    """Which engine gets a workflow."""

    name: str = Field(
        "workflow",
        description="`workflow`: by what is where and what comes there; `session-hash`: by the workflow's id alone; or "
        "`package.module:Class`.",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the router: see `serving.routing.workflow_router`."
    )
    others: tuple[str, ...] = Field(
        (),
        description="Routers of yours, as `package.module:Class`, that it may be switched to while it runs, besides "
        "those that are built in: `forecache router NAME`.",
    )

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        make_router(self.name, **self.parameters)
        for other in self.others:
            make_router(other)
        return self

    def choices(self) -> list[str]:
        """What it may be switched to while it runs. Import paths are the operator's to say, not a client's."""
        return sorted({self.name, *self.others, *router_names()})


class AppConfig(StrictModel):
    """`args:` of an application whose `import_path` is `serving.app:build_app`."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="Any SGLang server argument, by its Python name (`tp_size`, `max_total_tokens`, …).",
    )
    deployment: DeploymentConfig = Field(default_factory=DeploymentConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    admission: AdmissionConfig = Field(default_factory=lambda: AdmissionConfig())
    identity: IdentityConfig = Field(default_factory=IdentityConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    router: RouterConfig = Field(default_factory=RouterConfig)
    scaling: ScalingConfig = Field(default_factory=lambda: ScalingConfig())
    coordinator: CoordinatorConfig = Field(default_factory=lambda: CoordinatorConfig())
    predictor: PredictorConfig = Field(default_factory=PredictorConfig)

    def routing_table(self) -> dict[str, Any]:
        """The arguments of `serving.routing_table.routing_table`, for all who share it."""
        return {
            "table": self.model.served_name,
            "router": self.router.name,
            "parameters": self.router.parameters,
            "max_workflows": self.identity.max_workflows,
        }
