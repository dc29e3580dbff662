"""Recorded workflows, from any file of the trace format, as a workload."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from serving.benchmark.workloads import trace_format
from serving.benchmark.workloads.base import Call, Segment, Workflow, Workload, WorkloadError
from serving.benchmark.workloads.blocks import Cutter, intervals
from serving.benchmark.workloads.registry import check_choice, check_number, check_whole, register
from serving.benchmark.workloads.repeat import repeated
from serving.benchmark.workloads.trace_format import TraceCall, TraceWorkflow

AUTO = "auto"
SCOPES = (AUTO, "local", "global")
KNOWN_SCOPES = {"weka": "local", "mooncake": "global"}


@register("trace")
def trace(
    seed: int,
    *,
    path: str,
    scale: float = 1.0,
    workflows: int | None = None,
    repeat: int = 1,
    time_scale: float = 1.0,
    longest_pause_s: float | None = None,
    shuffle: bool = False,
    strict: bool = True,
    block_ids: str = AUTO,
    output_s_per_token: float = 0.0,
) -> Workload:
    """The workflows of a file in the trace format, in its order.

    What a record does not say is not guessed:

    * A pause is the time from the end of a call to the start of the next, 0 if the next started earlier (sub-agents
      may overlap; here a workflow's calls follow one another). Steps without a model call lie in that time, and give
      the pause its tool if the call names none. Without times, the pause is their own recorded duration, or 0.
    * If a call's end was not recorded, its start and `output_s_per_token` for each token stand for it; at 0, the
      pause contains the time in which the recorded call was served.
    * A call whose prompt was not recorded (no tokens) cannot be sent: it is a step without a model call, named after
      its agent. A recorded output of no tokens, or of an unknown number, is 1 token.
    * If the segments of a prompt do not add up to its `prompt_tokens`, the segments count.
    * `arrival_s` is the start of a workflow's first call, as recorded: arrival times are of use only if the file has
      them on one clock. In many files each workflow starts at 0.
    * No segment is marked as an earlier call's output, since the format does not say which is.

    Args:
        seed: for `shuffle` only.
        scale: multiplies all lengths.
        workflows: as many of them at most.
        repeat: how often they come, each time as new work; see `repeated`.
        time_scale: multiplies pauses and arrivals.
        longest_pause_s: longer pauses are cut to it: whoever left a run overnight comes back after so long.
        shuffle: puts the workflows into an order that the seed decides, before the limit.
        strict: false leaves out lines that cannot be read and counts them in `skipped`.
        block_ids: `local` if equal block ids are equal text within a workflow only, `global` if in the whole file;
            `auto` goes by the line's `hash_id_scope` or, without it, by its `source` (Weka local, Mooncake global).

    Raises:
        WorkloadError: the file, or with `strict` a line of it, cannot be read (says which line and why).
    """
    if not isinstance(path, str | Path):
        raise WorkloadError(f"workload 'trace': path is {path!r}; give the path of a trace file")
    if workflows is not None:
        check_whole("trace", "workflows", workflows)
    check_whole("trace", "repeat", repeat)
    check_number("trace", "time_scale", time_scale)
    if longest_pause_s is not None:
        check_number("trace", "longest_pause_s", longest_pause_s)
    check_number("trace", "output_s_per_token", output_s_per_token)
    check_choice("trace", "block_ids", block_ids, SCOPES)
    file = Path(path)
    reader = _Reader(file, block_ids, strict)
    reader.read(None if shuffle else workflows)
    if not reader.lines:
        raise WorkloadError(f"{file} holds no workflow that can be read ({reader.skipped} lines skipped)")
    if shuffle:
        random.Random(f"trace/{seed}").shuffle(reader.lines)
        reader.lines = reader.lines[:workflows]
    build = _Builder(
        reader.lines, time_scale, math.inf if longest_pause_s is None else longest_pause_s, output_s_per_token
    )
    made = Workload(f"trace:{file.stem}", tuple(build.workflow(*line) for line in reader.lines), reader.skipped)
    return repeated(made.scaled(scale), repeat)


class _Reader:
    """Takes the lines of a file that can be read and that agree with one another."""

    def __init__(self, file: Path, block_ids: str, strict: bool) -> None:
        self.lines: list[tuple[TraceWorkflow, str]] = []
        self.skipped = 0
        self._file = file
        self._block_ids = block_ids
        self._strict = strict
        self._lengths: dict[str, int] = {}
        self._ids: set[str] = set()
        self._block_size: int | None = None

    def read(self, limit: int | None) -> None:
        for number, record in trace_format.read(self._file):
            problem = record if isinstance(record, WorkloadError) else self._take(record)
            if problem is not None:
                if self._strict:
                    where = f"{self._file}, line {number}"
                    raise WorkloadError(str(problem) if problem is record else f"{where}: {problem}")
                self.skipped += 1
            if limit is not None and len(self.lines) >= limit:
                return

    def _take(self, record: TraceWorkflow) -> str | None:
        """Takes the line, or tells what is wrong with it."""
        if record.workflow_id in self._ids:
            return f"workflow_id {record.workflow_id!r} stands in an earlier line, too"
        lengths: dict[str, int] = {}
        for call in record.calls:
            for segment in call.prompt_segments:
                known = self._lengths.get(segment.id) or lengths.setdefault(segment.id, segment.tokens)
                if known != segment.tokens:
                    return f"segment {segment.id!r} has {segment.tokens} tokens here and {known} before"
        scope = ""
        if any(call.blocks_rle for call in record.calls):
            scope = self._scope(record)
            if not scope:
                return "no telling whether its block ids are local or global: set hash_id_scope, or block_ids"
            if scope == "global":
                if self._block_size not in (None, record.block_size):
                    return f"block_size is {record.block_size} here and {self._block_size} before, with global ids"
                self._block_size = record.block_size
        self._ids.add(record.workflow_id)
        self._lengths.update(lengths)
        self.lines.append((record, scope))
        return None

    def _scope(self, record: TraceWorkflow) -> str:
        if self._block_ids != AUTO:
            return self._block_ids
        if record.hash_id_scope is not None:
            return record.hash_id_scope
        return next((scope for name, scope in KNOWN_SCOPES.items() if name in record.source.lower()), "")


@dataclass(slots=True)
class _Pending:
    """A call, and what came between it and the next call."""

    recorded: TraceCall
    prompt: tuple[Segment, ...]
    steps: list[TraceCall] = field(default_factory=list)


class _Builder:
    """Makes workflows of lines. Knows all lines first, since blocks are cut where any prompt begins or ends."""

    def __init__(
        self,
        lines: list[tuple[TraceWorkflow, str]],
        time_scale: float,
        longest_pause_s: float,
        output_s_per_token: float,
    ) -> None:
        self._time_scale = time_scale
        self._longest_pause_s = longest_pause_s
        self._output_s_per_token = output_s_per_token
        self._segments: dict[str, Segment] = {}
        self._everywhere = Cutter("blocks")
        for record, scope in lines:
            if scope == "global":
                self._learn(self._everywhere, record)

    def workflow(self, record: TraceWorkflow, scope: str) -> Workflow:
        cutter = self._everywhere
        if scope == "local":
            cutter = Cutter(record.workflow_id)
            self._learn(cutter, record)
        pending: list[_Pending] = []
        for number, call in enumerate(record.calls):
            if call.has_prompt:
                pending.append(_Pending(call, self._prompt(cutter, record, number, call)))
            elif pending:
                pending[-1].steps.append(call)
        following: list[TraceCall | None] = [each.recorded for each in pending[1:]]
        calls = tuple(self._call(each, then) for each, then in zip(pending, [*following, None], strict=True))
        start = pending[0].recorded.start_s
        return Workflow(record.workflow_id, calls, None if start is None else start * self._time_scale, record.parent)

    def _learn(self, cutter: Cutter, record: TraceWorkflow) -> None:
        for call in record.calls:
            if call.blocks_rle and record.block_size:
                cutter.learn(intervals(call.blocks_rle, record.block_size, call.prompt_tokens)[0])

    def _prompt(self, cutter: Cutter, record: TraceWorkflow, number: int, call: TraceCall) -> tuple[Segment, ...]:
        if not call.blocks_rle or not record.block_size:
            return tuple(
                self._segments.setdefault(each.id, Segment(each.id, each.tokens)) for each in call.prompt_segments
            )
        found, left = intervals(call.blocks_rle, record.block_size, call.prompt_tokens)
        prompt = [segment for interval in found for segment in cutter.cut(interval)]
        if left:
            prompt.append(Segment(f"{record.workflow_id}/call-{number}/rest", left))
        return tuple(prompt)

    def _call(self, pending: _Pending, then: TraceCall | None) -> Call:
        call = pending.recorded
        tool = call.tool or next((step.tool or step.agent for step in pending.steps), None)
        pause = min(self._longest_pause_s, self._pause(pending, then) * self._time_scale)
        return Call(call.agent, pending.prompt, max(1, call.output_tokens or 0), pause, tool)

    def _pause(self, pending: _Pending, then: TraceCall | None) -> float:
        end = self._end(pending.recorded)
        if end is not None and then is not None and then.start_s is not None:
            return max(0.0, then.start_s - end)
        durations = [
            step.end_s - step.start_s for step in pending.steps if step.start_s is not None and step.end_s is not None
        ]
        return sum(durations)

    def _end(self, call: TraceCall) -> float | None:
        if call.end_s is not None or call.start_s is None:
            return call.end_s
        return call.start_s + (call.output_tokens or 0) * self._output_s_per_token
