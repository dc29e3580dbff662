"""What a suite comes to: its points, the engines that they need, and the order of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from serving.benchmark.contestants import ROUTED_BY, Contestant, contestant
from serving.benchmark.driver.suite import ArrivalsConfig, Suite, SuiteError, WorkloadConfig
from serving.benchmark.records import PointSpec, Value
from serving.benchmark.workloads import Workload, WorkloadError
from serving.config import AppConfig

# Room in the pool of `unlimited` beyond what all prompts and outputs of a round hold.
UNLIMITED_MARGIN = 1.1
DEFAULT_CONTEXT = 32768


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One point of the sweep. `engine` are the engine arguments that it sets, by SGLang's names."""

    spec: PointSpec
    workload: WorkloadConfig
    arrivals: ArrivalsConfig
    engine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """An application that some of the policies of a point run on; equal variants are one application."""

    name: str
    config: AppConfig


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one policy at one point."""

    point: RunPoint
    contestant: Contestant
    round: int


def points_of(suite: Suite, own_engines: bool = True) -> list[RunPoint]:
    """The points of the sweep: each combination of parameters of the workload, concurrency or rate of
    arrivals, device and host pools.

    Args:
        own_engines: whether the suite's `app` says how the engines are; of a running endpoint nothing is said.
    """
    sweep = suite.sweep
    engine = suite.app.engine if own_engines else {}
    axes: list[Sequence[Any]] = [
        [dict(zip(sweep.workload, each, strict=True)) for each in product(*sweep.workload.values())],
        sweep.concurrency or [suite.arrivals.lanes],
        sweep.workflows_per_s or [suite.arrivals.poisson_per_s],
        sweep.device_tokens or [engine.get("max_total_tokens")],
        sweep.host_ratio or [engine.get("hicache_ratio")],
    ]
    points = []
    for parameters, lanes, rate, device_tokens, host_ratio in product(*axes):
        values: dict[str, Value] = {"workload": suite.workload.name, **parameters}
        arrivals = suite.arrivals
        if lanes is not None:
            arrivals = ArrivalsConfig(lanes=lanes)
            values["concurrency"] = lanes
        elif rate is not None:
            arrivals = ArrivalsConfig(poisson_per_s=rate)
            values["workflows_per_s"] = rate
        if device_tokens is not None:
            values["device_tokens"] = device_tokens
        if host_ratio is not None:
            values["host_ratio"] = host_ratio
        set_here = {"max_total_tokens": device_tokens, "hicache_ratio": host_ratio}
        given = {name: value for name, value in set_here.items() if value is not None}
        points.append(RunPoint(PointSpec.of(**values), suite.workload.with_parameters(parameters), arrivals, given))
    return points


def variant_of(who: Contestant, point: RunPoint, suite: Suite, unlimited_tokens: int, checkpoint: str = "") -> Variant:
    """The application that a policy runs on at a point.

    All policies of our cache share one and are switched while it runs; `stock` and `session-refs` have SGLang's own
    cache, and `unlimited` a pool of `unlimited_tokens` that holds a whole round, hence no host tier. The whole system
    has a coordinator and a predictor, which begins with `checkpoint` or with nothing and learns from round to round.
    Those with the same admission share another, whose coordinator forecasts nothing: it limits workflows and says who
    is paused. So do those with a router, whose coordinator only says how the engines are.
    """
    engine = dict(suite.app.engine) | dict(point.engine)
    cache: dict[str, Any] = {}
    if who.session_refs:
        name, engine["enable_session_radix_cache"] = "session-refs", True
    elif who.backend == "sglang":
        name = "stock"
    elif who.coordinator:
        name = who.name.partition(ROUTED_BY)[0].partition("@")[0]
    elif who.unlimited:
        name = "unlimited"
        engine |= {"max_total_tokens": unlimited_tokens, "enable_hierarchical_cache": False}
    else:
        name = "forecache"
    cache["backend"] = who.backend
    if who.backend == "forecache":
        cache |= {"policy": "lru", "parameters": {}, "prefetch": "off", "learned_dir": ""}
    given = suite.app.model_dump(exclude_unset=True)
    limited = who.admission != "off"
    given["coordinator"] = given.get("coordinator", {}) | {
        "enabled": who.coordinator or limited or bool(who.router),
        "admission": who.admission,
        "admission_parameters": who.admission_parameters,
    }
    if who.coordinator:
        given["predictor"] = given.get("predictor", {}) | {"traces_dir": "", "checkpoint": checkpoint}
    elif limited:
        name += "-limited"
        given["coordinator"]["runtime_policies"] = ("kv-reuse", "admission")
        given["predictor"] = {"enabled": False}
    elif who.router:
        name += "-routed"
        given["coordinator"]["runtime_policies"] = ()
        given["predictor"] = {"enabled": False}
    if suite.routers:
        given["router"] = {"others": sorted({contestant(one).router for one in suite.contestants()})}
    given["engine"] = engine
    given["cache"] = given.get("cache", {}) | cache
    return Variant(name, AppConfig.model_validate(given))


def turns_of(suite: Suite, points: Sequence[RunPoint]) -> Iterator[Turn]:
    """All rounds in the order in which they are played: point by point, round by round, in each all the policies."""
    contestants = [contestant(name) for name in suite.contestants()]
    for point in points:
        for number in range(suite.rounds):
            for who in in_turn(contestants, number):
                yield Turn(point, who, number)


def in_turn(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    """The policies in the order of round `number`: those of one application together, each round another first."""
    groups: dict[tuple[str, ...], list[Contestant]] = {}
    for who in contestants:
        own = who.name.partition(ROUTED_BY)[0] if who.coordinator else ""
        kind = (who.backend, str(who.session_refs), str(who.unlimited), own)
        groups.setdefault((*kind, who.admission, str(who.admission_parameters)), []).append(who)
    rotated = _rotated(list(groups.values()), number)
    return [who for group in rotated for who in _rotated(group, number)]


def _rotated(items: list[Any], by: int) -> list[Any]:
    start = by % len(items)
    return items[start:] + items[:start]


def unlimited_tokens(workloads: Sequence[Workload]) -> int:
    """A device pool in which each of the workloads fits as a whole."""
    needed = 0
    for workload in workloads:
        statistics = workload.statistics()
        needed = max(needed, statistics.distinct_tokens + statistics.output_tokens)
    return int(needed * UNLIMITED_MARGIN) + 1024


def check_fit(suite: Suite, points: Sequence[RunPoint], workloads: Sequence[Workload]) -> None:
    """Does every call fit into the context and into the smallest pool, and can workflows arrive as asked?

    Raises:
        SuiteError: names the call, its size and the remedy.
    """
    context = int(suite.app.engine.get("context_length") or DEFAULT_CONTEXT)
    if suite.app.model.source == "random-qwen3":
        context = min(context, suite.app.model.random.max_position_embeddings)
    pools = [int(point.engine["max_total_tokens"]) for point in points if "max_total_tokens" in point.engine]
    smallest = min([context, *pools])
    what = "the context length" if smallest == context else "device_tokens, the smallest device pool of the sweep"
    for workload in workloads:
        try:
            workload.check(smallest)
            suite.arrivals.arrivals(0).start_times(workload)
        except WorkloadError as error:
            raise SuiteError(f"{error} (the limit is {what})") from error
