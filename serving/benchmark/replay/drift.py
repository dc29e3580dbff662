"""What a policy that learns loses when the workload changes: beside itself, had it begun anew at the change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from serving.benchmark.contestants import Contestant
from serving.benchmark.forecasts import source_of
from serving.benchmark.hit_table import Line, percent
from serving.benchmark.records import CallRecord
from serving.benchmark.replay.costs import Costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.workloads import Lanes, Workflow
from serving.benchmark.workloads.change import Change

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Window:
    """Calls after the change, from `begin` on and before `end`, by their order."""

    begin: int
    end: int

    @classmethod
    def parsed(cls, text: str) -> Window:
        """`500:1500`.

        Raises:
            ValueError: it is no window.
        """
        begin, separator, end = text.partition(":")
        if not separator or not begin.isdecimal() or not end.isdecimal() or int(begin) >= int(end):
            raise ValueError(f"calls {text!r}: give FROM:TO, as in 500:1500")
        return cls(int(begin), int(end))

    def __str__(self) -> str:
        return f"{self.begin + 1}–{self.end}"

    def hits(self, calls: Sequence[CallRecord]) -> float:
        """In percent of the window's prompts.

        Raises:
            ValueError: there are no calls in it.
        """
        if not (found := calls[self.begin : self.end]):
            raise ValueError(f"after the change there are {len(calls)} calls, none of them in {self}")
        return percent(found)


class BegunAnew(Replay):
    """A replay whose policy forgets at the change what it has learned, and so do its forecasts.

    The cache stays as it is, with what it holds and what is running. So all that tells it from a replay that goes on
    is what was learned before the change.
    """

    def __init__(self, setup: Setup, contestant: Contestant, change: Change) -> None:
        super().__init__(setup, contestant)
        self._later = change.later
        self._changed = False

    def _send(self, workflow: Workflow, index: int, now: float) -> None:
        if not self._changed and workflow.id in self._later:
            self._changed = True
            self._source = source_of(self._contestant, self._setup.workload, self._setup.seed)
            for engine in self._engines:
                engine.cache.set_policy(self._contestant.policy, self._contestant.parameters)
        super()._send(workflow, index, now)


@dataclass(frozen=True, slots=True)
class Drift:
    """What is measured: every policy after every change, at shares of what the workflows that run at once use.

    Attributes:
        changes: of each round.
        shares: device tokens, as such shares.
        lanes: workflows that run at once.
    """

    changes: Sequence[Change]
    policies: Sequence[Contestant]
    shares: Sequence[float]
    windows: Sequence[Window]
    costs: Costs
    lanes: int = 16

    def lines(self, progress: Progress = lambda what: None) -> list[Line]:
        """What is hit in percent, round by round: a line for each share and window.

        A policy that learns, or that is forecast to, stands there twice: the second time as begun anew at the change.
        """
        found: list[Line] = []
        for share in self.shares:
            lines: list[dict[str, list[float]]] = [{} for _ in self.windows]
            for number, change in enumerate(self.changes):
                for name, replay in self._replays(change, share):
                    progress(f"{share:g} {name}, round {number + 1}")
                    replay.run()
                    calls = [call for call in replay.calls if call.workflow in change.later]
                    calls.sort(key=lambda call: (call.sent_s, call.workflow))
                    for line, window in zip(lines, self.windows, strict=True):
                        line.setdefault(name, []).append(window.hits(calls))
            found += lines
        return found

    def _replays(self, change: Change, share: float) -> Iterator[tuple[str, Replay]]:
        longest = max(call.prompt_tokens + call.output_tokens for _, _, call in change.workload.calls())
        shape = EngineShape(round(share * self.lanes * change.live_footprint), 0, longest_call=longest)
        setup = Setup(change.workload, Lanes(self.lanes), self.costs, shape)
        for contestant in self.policies:
            yield contestant.name, Replay(setup, contestant)
            if contestant.policy == "reuse" or contestant.forecasts != "none":
                yield f"{contestant.name}, anew", BegunAnew(setup, contestant, change)
