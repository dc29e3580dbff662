"""What limits on the workflows inside are worth: open arrivals at multiples of what an engine can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cache_actor.admission import Bounds
from serving.benchmark.contestants import Contestant, contestant
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.workflow_figures import workflow_figures
from serving.benchmark.workloads import Lanes, Poisson, Times, Workload
from serving.benchmark.workloads.arrivals import Arrivals

Progress = Callable[[str], None]
NO_LIMIT = "off"
# A burst comes at these multiples of the capacity, a third of the workflows at each.
BURST = (0.5, 3.0, 0.5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy behind one limit at one rate. Times in seconds, and from a workflow's arrival on.

    Attributes:
        rate: arrivals as a multiple of the capacity.
        limit: `off`, a number, or the name of what finds it (with its parameters).
        mean_s, p99_s: of the workflows' latencies, waiting outside included.
        ttft_s: mean time to first token of the calls, waiting outside included.
        waited_s: the longest that a call was held.
        hit: share of the prompt tokens; `again` the share of the computed ones that had been in the cache before.
        seconds: until the last workflow was over.
    """

    rate: float
    policy: str
    limit: str
    workflows: int
    mean_s: float
    p99_s: float
    ttft_s: float
    waited_s: float
    hit: float
    again: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Burst:
    """What one policy behind one limit does while three times as much comes as an engine can do, and after.

    Attributes:
        begin_s, end_s: of the burst.
        timeline: samples of who is in (`admitted`), who waits (`held`), and the limit, absent without one.
        hits: (seconds, hit share of the prompts whose first token came about then).
    """

    policy: str
    limit: str
    begin_s: float
    end_s: float
    timeline: list[dict[str, float]]
    hits: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class AdmissionStudy:
    """What is measured: every policy behind every limit at every rate, on one modelled engine.

    Attributes:
        workload: enough workflows for a queue that lasts; see `repeated`.
        policies: of the cache, without admission.
        limits: `off`, numbers, and names of what finds one.
        rates: as multiples of the capacity.
        bounds: what those are promised who wait.
    """

    workload: Workload
    policies: Sequence[str]
    limits: Sequence[str]
    rates: Sequence[float]
    costs: Costs
    shape: EngineShape
    seed: int = 0
    bounds: Bounds = field(default_factory=Bounds)

    def capacity_per_s(self, progress: Progress = lambda what: None) -> float:
        """Workflows a second that the last of the policies finishes at most, with any of the fixed limits in a closed
        loop: as many in at once, and always another one that waits.

        Raises:
            ValueError: there is no fixed limit among the limits.
        """
        lanes = [int(limit) for limit in self.limits if limit.isdecimal()]
        if not lanes:
            raise ValueError("without fixed limits the capacity cannot be measured; give some, or the capacity")
        best = 0.0
        for count in lanes:
            progress(f"capacity with {count} at once")
            replay = self._replay(contestant(self.policies[-1]), Lanes(count), self.workload)
            best = max(best, len(self.workload.workflows) / replay.record.seconds)
        return best

    def outcomes(self, capacity_per_s: float, progress: Progress = lambda what: None) -> Iterator[Outcome]:
        """All of it, one by one.

        Args:
            capacity_per_s: workflows a second; the rates are multiples of it.
        """
        for rate in self.rates:
            arrivals = Poisson(rate * capacity_per_s, self.seed)
            for policy in self.policies:
                for limit in self.limits:
                    progress(f"{rate:g} x capacity, {policy}, limit {limit}")
                    yield _outcome(rate, policy, limit, self._replay(_behind(policy, limit), arrivals, self.workload))

    def burst(self, capacity_per_s: float, policy: str, limit: str) -> Burst:
        """A burst and its end: the workflows come in thirds, at the multiples of the capacity in `BURST`."""
        gaps = np.random.default_rng(self.seed).exponential(size=len(self.workload.workflows)) / capacity_per_s
        thirds = np.array_split(np.arange(len(gaps)), len(BURST))
        for third, rate in zip(thirds, BURST, strict=True):
            gaps[third] /= rate
        at = np.cumsum(gaps)
        arriving = (
            replace(workflow, arrival_s=float(start))
            for workflow, start in zip(self.workload.workflows, at, strict=True)
        )
        workload = replace(self.workload, workflows=tuple(arriving))
        replay = self._replay(_behind(policy, limit), Times(), workload)
        begin, end = float(at[thirds[1][0]]), float(at[thirds[1][-1]])
        return Burst(policy, limit, begin, end, _load_over_time(replay), _hits_over_time(replay))

    def _replay(self, who: Contestant, arrivals: Arrivals, workload: Workload) -> Replay:
        replay = Replay(Setup(workload, arrivals, self.costs, self.shape, seed=self.seed, bounds=self.bounds), who)
        replay.run()
        return replay


@dataclass(frozen=True, slots=True)
class Mark:
    """How a limit that was found compares at one rate under one policy: ratios of latencies.

    Attributes:
        best: the fixed limit of least mean latency; `off` is one of them.
        over_best, over_off, p99_over_off: mean latency over the best's and over that of letting all in, and the
            99th percentile over the latter's.
        lru_over: mean latency of `lru` with all let in over that of this one.
    """

    rate: float
    policy: str
    limit: str
    best: str
    over_best: float
    over_off: float
    p99_over_off: float
    lru_over: float | None


def marks(outcomes: Sequence[Outcome]) -> list[Mark]:
    """One for each limit that was found, where there is letting all in to compare with."""
    found: list[Mark] = []
    for one in outcomes:
        if _fixed(one.limit):
            continue
        beside = [other for other in outcomes if (other.rate, other.policy) == (one.rate, one.policy)]
        off = next((other for other in beside if other.limit == NO_LIMIT), None)
        if off is None:
            continue
        best = min((other for other in beside if _fixed(other.limit)), key=lambda other: other.mean_s)
        lru = [each for each in outcomes if (each.rate, each.policy, each.limit) == (one.rate, "lru", NO_LIMIT)]
        found.append(
            Mark(
                rate=one.rate,
                policy=one.policy,
                limit=one.limit,
                best=best.limit,
                over_best=one.mean_s / best.mean_s,
                over_off=one.mean_s / off.mean_s,
                p99_over_off=one.p99_s / off.p99_s,
                lru_over=lru[0].mean_s / one.mean_s if lru else None,
            )
        )
    return found


def shape_of(workload: Workload, share: float, lanes: int, max_running: int = 64) -> EngineShape:
    """An engine that holds so much of what `lanes` workflows at once use, on the device alone."""
    longest = max(call.prompt_tokens + call.output_tokens for _, _, call in workload.calls())
    tokens = round(share * lanes * workload.statistics().live_footprint)
    return EngineShape(tokens, 0, max_running=max_running, longest_call=longest)


def _fixed(limit: str) -> bool:
    return limit == NO_LIMIT or limit.isdecimal()


def _behind(policy: str, limit: str) -> Contestant:
    return contestant(policy if limit == NO_LIMIT else f"{policy}@{limit}")


def _outcome(rate: float, policy: str, limit: str, replay: Replay) -> Outcome:
    workflows = workflow_figures(replay.calls)
    latencies = np.array([each.latency_s for each in workflows])
    counters = replay.record.counters
    prompt = sum(each.prompt for each in workflows)
    return Outcome(
        rate=rate,
        policy=policy,
        limit=limit,
        workflows=len(workflows),
        mean_s=float(latencies.mean()),
        p99_s=float(np.quantile(latencies, 0.99)),
        ttft_s=sum(each.ttft_s for each in workflows) / max(1, sum(each.ttft_calls for each in workflows)),
        waited_s=replay.longest_wait_s,
        hit=sum(each.hit for each in workflows) / max(1, prompt),
        again=counters.get("regret", 0) / max(1, counters.get("computed", 0)),
        seconds=replay.record.seconds,
    )


def _load_over_time(replay: Replay) -> list[dict[str, float]]:
    """The samples of a replay; without a door everybody who has come and not ended is inside."""
    spans: dict[str, tuple[float, float]] = {}
    for call in replay.calls:
        begin, end = spans.get(call.workflow, (call.sent_s, call.end_s))
        spans[call.workflow] = min(begin, call.sent_s), max(end, call.end_s)

    def inside(at: float) -> float:
        return float(sum(begin <= at < end for begin, end in spans.values()))

    return [{"admitted": inside(sample["at_s"]), "held": 0.0} | sample for sample in replay.record.timeline]


def _hits_over_time(replay: Replay, windows: int = 60) -> list[tuple[float, float]]:
    calls = [call for call in replay.calls if call.first_token_s is not None]
    width = max(call.end_s for call in calls) / windows
    prompts, hits = np.zeros(windows + 1), np.zeros(windows + 1)
    for call in calls:
        window = int((call.first_token_s or 0.0) / width)
        prompts[window] += call.prompt_tokens
        hits[window] += call.hit_device + call.hit_host
    return [
        ((window + 0.5) * width, float(hits[window] / prompts[window])) for window in range(windows) if prompts[window]
    ]
