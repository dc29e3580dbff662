"""The suite file of `forecache bench run`: what is compared, under which load, on which engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from serving.benchmark.contestants import ROUTED_BY, Contestant, ContestantError, contestant
from serving.benchmark.workloads import (
    Arrivals,
    Lanes,
    Poisson,
    Times,
    Workload,
    WorkloadError,
    make_workload,
    workload_parameters,
)
from serving.config import AppConfig, StrictModel

# Past the special tokens at a vocabulary's start; the end is that of `random-qwen3`, or low enough for any vocabulary.
FIRST_TOKEN_ID = 10
LAST_TOKEN_ID = 290
# Rounds have seeds of their own, far from that of the workload which forecasts are taught with.
SEED_STEP = 1000
# Parameters of workloads that are paths; in a suite they are relative to its file, as is `app`.
FILE_PARAMETERS = ("path", "questions")


class SuiteError(ValueError):
    """A suite that cannot be run: names the key, its value and the remedy."""


class WorkloadConfig(StrictModel):
    """A workload by its name; every other key is one of its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def described(self) -> str:
        """In a line, without the folders of files."""
        shown = {
            key: Path(value).name if key in FILE_PARAMETERS and value else value
            for key, value in self.parameters.items()
        }
        return " ".join([self.name, *(f"{key}={value}" for key, value in shown.items())])

    def with_parameters(self, parameters: Mapping[str, Any]) -> WorkloadConfig:
        """The same with some parameters set, unchecked."""
        return WorkloadConfig.model_validate(self.model_dump() | dict(parameters))

    def make(self, seed: int) -> Workload:
        """The workload under a seed, if its kind has any use for one. Raises WorkloadError."""
        return make_workload(self.name, seed, **self.parameters)


class ArrivalsConfig(StrictModel):
    """When workflows start. Exactly one of `lanes`, `poisson_per_s` and `times` is given."""

    lanes: PositiveInt | None = Field(None, description="Closed loop: so many workflows at once.")
    poisson_per_s: PositiveFloat | None = Field(None, description="Open loop: starts at random, so many a second.")
    times: bool = Field(False, description="Open loop: as the trace recorded them.")
    time_scale: PositiveFloat = Field(1.0, description="With `times`: arrival times are multiplied by it, not pauses.")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = [self.lanes is not None, self.poisson_per_s is not None, self.times]
        if sum(given) != 1:
            raise ValueError("give exactly one of lanes, poisson_per_s and times")
        if self.time_scale != 1.0 and not self.times:
            raise ValueError("time_scale goes with times: true only")
        return self

    def arrivals(self, seed: int) -> Arrivals:
        if self.lanes is not None:
            return Lanes(self.lanes)
        return Times() if self.poisson_per_s is None else Poisson(self.poisson_per_s, seed)


class SweepConfig(StrictModel):
    """What is varied. Each combination of the lists is a point; `noise` is no axis, it adds policies (see Suite)."""

    workload: dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]] = Field(
        default_factory=dict, description="Parameters of the workload, each with its values, instead of its own."
    )
    concurrency: list[PositiveInt] = Field(default_factory=list, description="Lanes at once, instead of `lanes`.")
    workflows_per_s: list[PositiveFloat] = Field(
        default_factory=list, description="Starts a second, instead of `poisson_per_s`."
    )
    device_tokens: list[PositiveInt] = Field(default_factory=list, description="An engine's device pool.")
    host_ratio: list[PositiveFloat] = Field(default_factory=list, description="Host pool by device pool.")
    noise: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=list, description="Shares x of wrong steps: each adds the policy `lookahead-noisy(x)`."
    )


class RunLimits(StrictModel):
    """When the driver gives up."""

    call_timeout_s: PositiveFloat = Field(300.0, description="Seconds for a call; then it counts as failed.")
    silence_s: PositiveFloat = Field(30.0, description="Seconds in which calls fail and none succeeds: the run stops.")
    engines: PositiveInt = Field(3, description="Applications with engines that are alive at once.")


class Suite(StrictModel):
    """A whole suite file.

    `app` is what `args:` of a Serve config file holds, or the path of such a file, relative to the suite's.
    """

    name: str = Field(min_length=1)
    app: AppConfig = Field(default_factory=AppConfig)
    workload: WorkloadConfig
    arrivals: ArrivalsConfig
    rounds: PositiveInt = 3
    seed: NonNegativeInt = 0
    warm_up_workflows: NonNegativeInt = Field(1, description="Played on each engine after its start, not recorded.")
    policies: list[str] = Field(min_length=1)
    routers: list[str] = Field(
        default_factory=list,
        description="Who says which of several engines a call goes to: each policy under each of them; "
        "`workflow:margin_s=3` has a parameter.",
    )
    baseline: str | None = Field(None, description="What the policies are compared with; by default `stock` or `lru`.")
    sweep: SweepConfig = Field(default_factory=lambda: SweepConfig())
    limits: RunLimits = Field(default_factory=lambda: RunLimits())
    token_ids: tuple[NonNegativeInt, PositiveInt] | None = Field(
        None, description="Prompts are made of ids from the first to below the second; by default safe for the model."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        names = self.contestants()
        for name in names:
            _check_runs_here(contestant(name))
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline: {self.baseline!r} is not among the policies; choose one of {', '.join(names)}")
        if self.sweep.concurrency and self.arrivals.lanes is None:
            raise ValueError("sweep.concurrency varies the lanes; give arrivals.lanes, or leave it out")
        if self.sweep.workflows_per_s and self.arrivals.poisson_per_s is None:
            raise ValueError("sweep.workflows_per_s varies the starts; give arrivals.poisson_per_s, or leave it out")
        known = workload_parameters(self.workload.name)
        for parameter in self.sweep.workload:
            if parameter not in known or parameter in FILE_PARAMETERS:
                others = ", ".join(name for name in known if name not in FILE_PARAMETERS)
                raise ValueError(
                    f"sweep.workload: {parameter!r} of {self.workload.name!r} cannot be swept; choose from {others}"
                )
        return self

    def contestants(self) -> list[str]:
        """The names of all policies, each once: those listed, and one for each value of `sweep.noise`; each of them
        under each router, if there are any (`lru, session-hash`)."""
        policies = [*self.policies, *(f"lookahead-noisy({noise:g})" for noise in self.sweep.noise)]
        if self.routers:
            policies = [f"{policy}{ROUTED_BY}{router}" for policy in policies for router in self.routers]
        return list(dict.fromkeys(policies))

    def round_seed(self, number: int) -> int:
        return (self.seed + number) * SEED_STEP

    def teaching_seed(self) -> int:
        """Of the workload that forecasts learn from, which no round plays."""
        return self.seed * SEED_STEP + 1

    def token_range(self) -> tuple[int, int]:
        if self.token_ids is not None:
            return self.token_ids
        random = self.app.model.source == "random-qwen3"
        return FIRST_TOKEN_ID, self.app.model.random.vocab_size if random else LAST_TOKEN_ID


def load_suite(
    path: Path, policies: list[str] | None = None, rounds: int | None = None, routers: list[str] | None = None
) -> Suite:
    """The suite in a YAML file.

    Args:
        policies, rounds, routers: instead of the file's; `policies` also instead of those that `sweep.noise` adds.

    Raises:
        SuiteError: the file cannot be read, or something in it is wrong (all faults are listed).
    """
    given = _mapping(path)
    if isinstance(app := given.get("app"), str):
        given["app"] = _app_of(path.parent / app)
    if isinstance(workload := given.get("workload"), dict):
        given["workload"] = {
            key: str(path.parent / value) if key in FILE_PARAMETERS and isinstance(value, str) else value
            for key, value in workload.items()
        }
    given |= {} if rounds is None else {"rounds": rounds}
    if policies is not None:
        given["policies"] = policies
        if isinstance(sweep := given.get("sweep"), dict):
            given["sweep"] = {key: value for key, value in sweep.items() if key != "noise"}
    given |= {} if routers is None else {"routers": routers}
    if policies is not None or routers is not None:
        given["baseline"] = _kept_baseline(given, str(path))
    return suite_of(given, str(path))


def _kept_baseline(given: Mapping[str, Any], where: str) -> str | None:
    """The file's baseline, if options have left it among what is compared."""
    baseline = given.get("baseline")
    return baseline if baseline in suite_of({**given, "baseline": None}, where).contestants() else None


def suite_of(given: Mapping[str, Any], where: str) -> Suite:
    """The suite that a mapping describes. Raises SuiteError, in which `where` stands first."""
    try:
        return Suite.model_validate(given)
    except ValidationError as error:
        faults = [_fault(detail) for detail in error.errors(include_url=False)]
        raise SuiteError(f"{where}: {'; '.join(faults)}") from error
    except (ContestantError, WorkloadError) as error:
        raise SuiteError(f"{where}: {error}") from error


def _check_runs_here(who: Contestant) -> None:
    """Raises ValueError for what only a replay can do."""
    reason = None
    if who.clairvoyant:
        reason = "knows the future of every node"
    elif who.router and who.backend == "sglang":
        raise ValueError(
            f"routers: {who.name!r} has SGLang's own cache, which does not tell what it holds; choose other policies"
        )
    elif who.router and who.forecasts not in ("none", "predictor"):
        raise ValueError(
            f"routers: {who.name!r} is told forecasts by the benchmark, and a coordinator, which tells routers of "
            "engines, would send plans as well; choose policies without forecasts, or forecache"
        )
    elif who.admission != "off" and who.backend == "sglang":
        reason = "has SGLang's own cache, which does not tell what it computes again, and so no limit of workflows"
    elif who.admission != "off" and who.forecasts not in ("none", "predictor"):
        reason = (
            "is told forecasts by the benchmark, and a coordinator, which finds the limit, would send plans as well"
        )
    if reason is not None:
        raise ValueError(f"policies: {who.name!r} {reason}; only `forecache replay` can run it")


def _fault(detail: Mapping[str, Any]) -> str:
    key = ".".join(map(str, detail["loc"]))
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"there is no key {key!r}; remove it or correct its spelling"
    if detail["type"] == "missing":
        return f"the key {key!r} is missing"
    if not key:
        return message
    value = detail["input"]
    shown = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return f"{key} cannot be {shown}: {message}"


def _mapping(path: Path) -> dict[str, Any]:
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read ({error.strerror}); give the path of a suite file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: is not YAML: {error}") from error
    if not isinstance(given, dict):
        raise SuiteError(
            f"{path}: holds a {type(given).__name__}; a suite is a mapping with name, workload, policies …"
        )
    return given


def _app_of(path: Path) -> Any:
    """`args` of the one application in a Serve config file."""
    applications = _mapping(path).get("applications")
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        raise SuiteError(f"{path}: a benchmark needs a Serve config file with exactly one of `applications`")
    return applications[0].get("args") or {}
