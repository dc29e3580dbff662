"""The loop of `forecache bench run`: points, rounds and policies, what is kept of them, and how it may end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from serving.benchmark.contestants import contestant
from serving.benchmark.driver.engines import EnginesError, Fleet, RunningEndpoint
from serving.benchmark.driver.load import EndpointSilentError
from serving.benchmark.driver.points import (
    RunPoint,
    Turn,
    Variant,
    check_fit,
    points_of,
    turns_of,
    unlimited_tokens,
    variant_of,
)
from serving.benchmark.driver.round import RoundOutcome, RoundPlayer
from serving.benchmark.driver.suite import Suite, SuiteError
from serving.benchmark.driver.teaching import taught
from serving.benchmark.figures import Results, results_of
from serving.benchmark.records import CallRecord, RecordWriter, RoundKey, read_records
from serving.benchmark.workloads import Workload

RECORDS = "records.jsonl"
SUITE = "suite.yaml"
ERRORS_KEPT = 20


@dataclass(slots=True)
class Progress:
    """Where a run is. `calls` are done of `all_calls`, `rounds` of `all_rounds`; `now` says what runs."""

    all_calls: int
    all_rounds: int
    calls: int = 0
    rounds: int = 0
    now: str = ""


@dataclass(slots=True)
class RunOutcome:
    """How a run ended: `stopped` is why before its end, None if it went through."""

    interrupted: bool = False
    stopped: str | None = None
    lost: list[str] = field(default_factory=list)
    failed_calls: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


class Run:
    """A suite on real engines.

    Args:
        out: folder of the records; what it holds of the same suite is continued.
        endpoint: a running endpoint instead of engines of our own.

    Raises:
        SuiteError: the suite does not fit its engines or the endpoint, or `out` has the records of another.
    """

    def __init__(self, suite: Suite, out: Path, endpoint: str | None = None) -> None:
        self.suite = suite
        self.out = out
        self.outcome = RunOutcome()
        self._endpoint = endpoint
        self._points = points_of(suite, own_engines=endpoint is None)
        workloads = _workloads(suite, self._points)
        every = [one for each in workloads.values() for one in each]
        check_fit(suite, self._points, every)
        self._unlimited = unlimited_tokens(every)
        if endpoint is not None:
            _check_endpoint(suite)
        done = self._continued()
        self._turns = [turn for turn in turns_of(suite, self._points) if _key(turn) not in done]
        self._planned = len(self._turns) + len(done)
        played = [workloads[turn.point.workload.described()][turn.round] for turn in self._turns]
        calls = sum(len(list(workload.calls())) for workload in played)
        self.progress = Progress(calls, len(self._turns))

    def play(self, show: Callable[[Progress], object]) -> None:
        """All rounds that are not there yet. How it ended stands in `outcome`; nothing is raised for it."""
        start = time.monotonic()
        fleet = Fleet(self.suite.limits.engines) if self._endpoint is None else RunningEndpoint(self._endpoint)
        run_id = secrets.token_hex(2)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / SUITE).write_text(_as_text(self.suite), encoding="utf-8")
        try:
            with RecordWriter(self.out / RECORDS) as writer:
                for point in self._points:
                    writer.point(point.spec)
                if not self._turns:
                    return
                self._show(show, "starting Ray")
                with fleet:
                    for number, turn in enumerate(self._turns):
                        variant = self._variant(turn, show)
                        if not fleet.runs(variant):
                            self._show(show, f"{variant.name}: starting engines")
                        target = fleet.target(variant)
                        self._show(show, f"{turn.point.spec.key} · {turn.contestant.name} · round {turn.round + 1}")
                        self._play_one(writer, turn, target, f"{run_id}-{number}", start, show)
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        except (EnginesError, EndpointSilentError) as error:
            self.outcome.stopped = str(error)

    def results(self, command: str) -> Results:
        """The figures of all rounds that have finished, this time or before."""
        records = read_records(self.out / RECORDS)
        outcome = self.outcome
        about: dict[str, Any] = {
            "command": command,
            "model": self.suite.app.model.served_name,
            "workload": self.suite.workload.described(),
            "seed": self.suite.seed,
            "versions": ", ".join(f"{name} {version(name)}" for name in ("forecache", "sglang", "ray")),
            "plans": ", ".join(f"{count} {name}" for name, count in sorted(outcome.plans.items())) or "none sent",
        }
        if outcome.lost:
            about["rounds not counted"] = "; ".join(outcome.lost)
        if outcome.stopped:
            about["stopped"] = outcome.stopped
        if outcome.errors:
            about["errors"] = "; ".join(outcome.errors[:ERRORS_KEPT])
        complete = len(records.rounds) >= self._planned and not outcome.lost
        baseline = self.suite.baseline
        if baseline is not None and not any(baseline in records.policies(point) for point in records.points):
            baseline = None
        return results_of(records, self.suite.name, about, complete, baseline)

    def _variant(self, turn: Turn, show: Callable[[Progress], object]) -> Variant:
        checkpoint = ""
        if turn.contestant.trained:
            self._show(show, "training the predictor")
            checkpoint = str(taught(self.suite, turn.point.workload, self.out).resolve())
        return variant_of(turn.contestant, turn.point, self.suite, self._unlimited, checkpoint)

    def _play_one(
        self,
        writer: RecordWriter,
        turn: Turn,
        target: Any,
        suffix: str,
        start: float,
        show: Callable[[Progress], object],
    ) -> None:
        key = _key(turn)
        writer.begin_round(*key)

        def on_call(call: CallRecord) -> None:
            writer.call(call)
            self.progress.calls += 1
            show(self.progress)

        player = RoundPlayer(self.suite, turn, target, suffix, on_call, start)
        outcome = asyncio.run(player.play())
        self._count(turn, outcome)
        if outcome.lost is None:
            writer.end_round(outcome.record)
        self.progress.rounds += 1
        show(self.progress)

    def _count(self, turn: Turn, outcome: RoundOutcome) -> None:
        where = f"{turn.point.spec.key}, {turn.contestant.name}, round {turn.round + 1}"
        if outcome.lost is not None:
            self.outcome.lost.append(f"{where}: {outcome.lost}")
        self.outcome.failed_calls += outcome.failed
        self.outcome.plans += outcome.plans
        self.outcome.errors += [f"{where}: {error}" for error in dict.fromkeys(outcome.errors)]

    def _show(self, show: Callable[[Progress], object], now: str) -> None:
        self.progress.now = now
        show(self.progress)

    def _continued(self) -> set[RoundKey]:
        """The rounds that the folder has already. Raises SuiteError."""
        records, known = self.out / RECORDS, self.out / SUITE
        if not records.exists():
            return set()
        if not known.exists() or known.read_text(encoding="utf-8") != _as_text(self.suite):
            raise SuiteError(f"--out: {self.out} has the records of another suite; choose another folder")
        return set(read_records(records).rounds)


def _workloads(suite: Suite, points: Sequence[RunPoint]) -> dict[str, list[Workload]]:
    """What the rounds play, by the description of the workload; points often share one. Raises WorkloadError."""
    configs = {point.workload.described(): point.workload for point in points}
    seeds = [suite.round_seed(number) for number in range(suite.rounds)]
    return {described: [config.make(seed) for seed in seeds] for described, config in configs.items()}


def _check_endpoint(suite: Suite) -> None:
    """What can only be set when an engine starts cannot be asked of a running one. Raises SuiteError."""
    if suite.sweep.device_tokens or suite.sweep.host_ratio:
        raise SuiteError("--endpoint: pools of running engines cannot be swept; leave out device_tokens and host_ratio")
    for name in suite.contestants():
        who = contestant(name)
        if who.backend != "forecache" or who.unlimited or who.coordinator or who.admission != "off":
            raise SuiteError(
                f"--endpoint: the policy {name!r} needs an engine that starts in another way; leave it out of "
                "--policies, or leave out --endpoint"
            )


def _key(turn: Turn) -> RoundKey:
    return turn.point.spec.key, turn.contestant.name, turn.round


def _as_text(suite: Suite) -> str:
    return str(yaml.safe_dump(suite.model_dump(mode="json"), sort_keys=False))
