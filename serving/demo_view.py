"""The results of a demo run, and how they are shown: live, as plain lines, and as a summary at the end."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

LIVE_ROWS = 30
MAX_ANSWERS = 4
MAX_ERRORS = 5


@dataclass(slots=True)
class CallResult:
    """One call. Counts are tokens, None where the endpoint did not report them.

    `cached_device` and `cached_host` split `cached_tokens` by tier; `ttft_s` is None if no text came.
    """

    workflow: str
    agent: str
    round: int
    engine: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_device: int | None = None
    cached_host: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    error: str | None = None


@dataclass(slots=True)
class WorkflowResult:
    """One workflow. `ended` by: critic, limit (of rounds), error, or interrupted while it ran."""

    id: str
    task: str
    ended: str = "interrupted"
    calls: list[CallResult] = field(default_factory=list)
    answer: str = ""


class Totals:
    """Sums over calls, kept up as they finish. A failed call counts too, with what it reported."""

    COUNTS = ("prompt_tokens", "cached_tokens", "cached_device", "cached_host", "output_tokens")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.counts = dict.fromkeys(self.COUNTS, 0)
        self._ttft_s: list[float] = []
        self._ttft_sum_s = 0.0

    def add(self, call: CallResult) -> None:
        self.calls += 1
        self.errors += call.error is not None
        for name in self.COUNTS:
            self.counts[name] += getattr(call, name) or 0
        if call.ttft_s is not None:
            self._ttft_s.append(call.ttft_s)
            self._ttft_sum_s += call.ttft_s

    @property
    def hit_share(self) -> float | None:
        """Cached prompt tokens per prompt token, 0 to 1; None before the first."""
        prompt = self.counts["prompt_tokens"]
        return self.counts["cached_tokens"] / prompt if prompt else None

    @property
    def ttft_mean_s(self) -> float | None:
        return self._ttft_sum_s / len(self._ttft_s) if self._ttft_s else None

    @property
    def ttft_p95_s(self) -> float | None:
        """The nearest-rank 95th percentile."""
        ordered = sorted(self._ttft_s)
        return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None


@dataclass(slots=True)
class DemoResult:
    """Everything that was run, filled while it runs."""

    workflows: list[WorkflowResult] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    duration_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Times are seconds, `hit_share` is 0 to 1 and counts are tokens."""
        workflows = [asdict(workflow) for workflow in self.workflows]
        for call in itertools.chain.from_iterable(workflow["calls"] for workflow in workflows):
            del call["workflow"]
        totals = {
            "workflows": len(self.workflows),
            "calls": self.totals.calls,
            "errors": self.totals.errors,
            **self.totals.counts,
            "hit_share": self.totals.hit_share,
            "ttft_mean_s": self.totals.ttft_mean_s,
            "ttft_p95_s": self.totals.ttft_p95_s,
            "duration_s": self.duration_s,
        }
        return {"workflows": workflows, "totals": totals}


class DemoView:
    """`with DemoView(console, totals) as view`: on a terminal a live table of calls, else a line for each."""

    def __init__(self, console: Console, totals: Totals) -> None:
        self._console = console
        self._totals = totals
        self._recent: deque[CallResult] = deque(maxlen=LIVE_ROWS)
        # Drawn by a thread at its own pace: drawing on each call would delay the calls that are measured.
        live = console.is_terminal and not console.quiet
        self._live = Live(console=console, get_renderable=self._draw) if live else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_call(self, call: CallResult) -> None:
        self._recent.append(call)
        if self._live is not None:
            self._live.start()
        else:
            self._console.print(call_line(call), soft_wrap=True)

    def _draw(self) -> RenderableType:
        # A taller drawing would be cut at its end, where the totals stand.
        calls = list(self._recent)[-max(1, self._console.height - MAX_ERRORS - 4) :]
        return Group(calls_table(calls), *error_lines(calls), totals_line(self._totals))

    def print_summary(self, result: DemoResult) -> None:
        """The first answers, the agents' figures, the errors of the last workflows, and the totals."""
        answered = [workflow for workflow in result.workflows if workflow.answer]
        for workflow in answered[:MAX_ANSWERS]:
            title = Text(f"{workflow.id}: {workflow.task}", overflow="ellipsis", no_wrap=True)
            self._console.print(Panel(Text(workflow.answer), title=title, subtitle=f"ended by: {workflow.ended}"))
        if len(answered) > MAX_ANSWERS:
            self._console.print(f"... and {len(answered) - MAX_ANSWERS} more answers", highlight=False)
        calls = [call for workflow in result.workflows for call in workflow.calls]
        self._console.print(agents_table(calls), *error_lines(calls), totals_line(result.totals), sep="\n")


def calls_table(calls: Iterable[CallResult]) -> Table:
    columns = ("prompt", "device", "host", "TTFT", "total")
    table = _table(("workflow", "agent"), ("round", *columns))
    for call in calls:
        table.add_row(
            *(call.workflow, call.agent, str(call.round)),
            *map(_count, (call.prompt_tokens, call.cached_device, call.cached_host)),
            *map(_seconds, (call.ttft_s, call.total_s)),
            style="red" if call.error else None,
        )
    return table


def agents_table(calls: Iterable[CallResult]) -> Table:
    """The figures of each agent, in the order in which they first spoke."""
    agents: dict[str, Totals] = {}
    for call in calls:
        agents.setdefault(call.agent, Totals()).add(call)
    columns = ("calls", "errors", "prompt", "device", "host", "cached", "output", "TTFT mean", "p95")
    table = _table(("agent",), columns)
    for name, totals in agents.items():
        counts = totals.counts
        table.add_row(
            name,
            str(totals.calls),
            Text(str(totals.errors), style="red" if totals.errors else ""),
            *(_count(counts[key]) for key in ("prompt_tokens", "cached_device", "cached_host")),
            _share(totals.hit_share),
            _count(counts["output_tokens"]),
            *map(_seconds, (totals.ttft_mean_s, totals.ttft_p95_s)),
        )
    return table


def totals_line(totals: Totals) -> Text:
    counts = totals.counts
    return Text(
        f"{totals.calls} calls, {totals.errors} errors; {_count(counts['prompt_tokens'])} prompt tokens, "
        f"{_share(totals.hit_share)} from the cache (device {_count(counts['cached_device'])}, "
        f"host {_count(counts['cached_host'])}); TTFT mean {_seconds(totals.ttft_mean_s)}, "
        f"p95 {_seconds(totals.ttft_p95_s)}",
        style="red" if totals.errors else "bold",
    )


def call_line(call: CallResult) -> Text:
    if call.error:
        return _error(call)
    return Text(
        f"{call.workflow} {call.agent} round {call.round}: prompt {_count(call.prompt_tokens)}, "
        f"device {_count(call.cached_device)}, host {_count(call.cached_host)}, "
        f"TTFT {_seconds(call.ttft_s)}, total {_seconds(call.total_s)}"
    )


def error_lines(calls: Iterable[CallResult]) -> list[Text]:
    """The newest errors, oldest first."""
    return [_error(call) for call in calls if call.error][-MAX_ERRORS:]


def _error(call: CallResult) -> Text:
    return Text(f"{call.workflow} {call.agent} round {call.round}: {call.error}", style="red")


def _table(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens}"


def _seconds(time_s: float | None) -> str:
    return "-" if time_s is None else f"{time_s:.3f} s"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
