"""Workflows recorded elsewhere, as JSON Lines: one workflow in each line.

    {workflow_id, source?, calls: [{agent, prompt_segments?: [{id, tokens}], prompt_tokens?, output_tokens?, llm?,
     start_s?, end_s?, tool?, phase?, …}], …}

It is the format of `forecache replay --trace`, read leniently: what a forecast needs is taken, what is missing is not
known, what else a line holds is left. Segment ids stand for text: equal ids, equal text.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import orjson

from predictor_actor.base import AgentFacts, Call, WorkflowTrace
from predictor_actor.trace_record import MAX_CALLS, MAX_TOKENS, RecordError, make_call, make_trace

Label = Literal["agent", "agent+phase", "agent+tool"]
LABELS: tuple[str, ...] = get_args(Label)

MAX_ANCHOR_SEGMENTS = 16
# An agent's anchor is looked for in so many of its prompts.
MAX_PROMPTS = 4096


class JsonlImport:
    """Reads lines, and when all are read knows the agents' anchors.

    Args:
        label: what names a caller: its agent, or that with the phase (`Programmer@Coding`) or with the tool that its
            answer asks for (`assistant:respond`), where they are given.
    """

    def __init__(self, label: Label = "agent") -> None:
        if label not in LABELS:
            raise ValueError(f"label is {label!r}; choose from {', '.join(LABELS)}")
        self._label = label
        self._traces: list[WorkflowTrace] = []
        self._prompts: dict[str, list[tuple[str, ...]]] = {}
        self._tokens: dict[str, int] = {}
        self._workflows: dict[str, int] = {}

    def add(self, line: bytes) -> None:
        """Reads one line.

        Raises:
            RecordError: it is no workflow, or has no model call, or holds a value that a trace cannot have; nothing
                of it is kept.
        """
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise RecordError(f"it is not JSON: {error}") from None
        if type(found) is not dict or type(found.get("calls")) is not list:
            raise RecordError(
                "it is no workflow, an object with `workflow_id` and a list `calls`; spans of OpenTelemetry are"
                " imported by `forecache traces import`"
            )
        steps = [step for step in map(_step, found["calls"]) if step.get("llm", True) is not False]
        if not 0 < len(steps) <= MAX_CALLS:
            raise RecordError(f"it has {len(steps)} model calls; a workflow has 1 to {MAX_CALLS}")
        calls = [_call(step, self._label) for step in steps]
        heads = [list(_head(step)) for step in steps]
        first = min((call.start_s for call in calls if call.start_s is not None), default=0.0)
        shifted = [_shifted(call, first) for call in calls]
        source = found.get("source") or ""
        self._traces.append(make_trace(found.get("workflow_id"), shifted, started_at=first, source=source))
        self._keep(calls, heads)

    def traces(self) -> list[WorkflowTrace]:
        """What has been read, with the facts of the agents as all lines together show them."""
        facts = {name: anchor for name, prompts in self._prompts.items() if (anchor := self._anchor(prompts))}
        return [replace(trace, agents=_of(trace, facts)) for trace in self._traces]

    def _keep(self, calls: Sequence[Call], heads: Sequence[Sequence[tuple[str, int]]]) -> None:
        for call, head in zip(calls, heads, strict=True):
            prompts = self._prompts.setdefault(call.agent, [])
            if head and len(prompts) < MAX_PROMPTS:
                prompts.append(tuple(piece for piece, _ in head))
            for piece, tokens in head:
                self._tokens.setdefault(piece, tokens)
        for piece in {piece for head in heads for piece, _ in head}:
            self._workflows[piece] = self._workflows.get(piece, 0) + 1

    def _anchor(self, prompts: Sequence[tuple[str, ...]]) -> AgentFacts | None:
        """The longest beginning that at least half of the prompts share, and that more than one workflow has.

        Not of all prompts, for one agent may have a few variants of its text, and a record its faults. What a single
        workflow has may be its task.
        """
        pieces: list[str] = []
        going = prompts
        while len(pieces) < MAX_ANCHOR_SEGMENTS:
            depth = len(pieces)
            nexts = Counter(head[depth] for head in going if len(head) > depth)
            if not nexts:
                break
            piece, count = nexts.most_common(1)[0]
            if 2 * count < len(prompts) or self._workflows[piece] < 2:
                break
            pieces.append(piece)
            going = [head for head in going if len(head) > depth and head[depth] == piece]
        if not pieces:
            return None
        tokens = min(MAX_TOKENS, sum(self._tokens[piece] for piece in pieces))
        return AgentFacts(tokens, tuple(map(stable_hash, pieces)))


def labelled(agent: Any, phase: Any, tool: Any, label: Label) -> Any:
    """The name of a caller; the agent alone, as it is, if the rest of the label is not known."""
    more, sign = (phase, "@") if label == "agent+phase" else (tool, ":") if label == "agent+tool" else (None, "")
    return f"{agent}{sign}{more}" if type(agent) is str and type(more) is str and more else agent


def stable_hash(text: str) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _step(step: Any) -> dict[str, Any]:
    if type(step) is not dict:
        raise RecordError(f"a call is an object, not {reprlib.repr(step)}")
    return step


def _call(step: Mapping[str, Any], label: Label) -> Call:
    tool = step.get("tool") or None
    agent = labelled(step.get("agent"), step.get("phase"), tool, label)
    prompt, output = step.get("prompt_tokens"), step.get("output_tokens")
    return make_call(
        agent,
        0 if prompt is None else prompt,
        0 if output is None else output,
        step.get("start_s"),
        step.get("end_s"),
        tool,
    )


def _head(step: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Ids and tokens of the prompt's first segments."""
    segments = step.get("prompt_segments")
    if segments is None:
        return
    if type(segments) is not list:
        raise RecordError(f"prompt_segments is a list, not {reprlib.repr(segments)}")
    for segment in segments[:MAX_ANCHOR_SEGMENTS]:
        if type(segment) is not dict or type(segment.get("id")) is not str or type(segment.get("tokens")) is not int:
            raise RecordError(f"a segment has an `id` and its `tokens`; this is {reprlib.repr(segment)}")
        if not 0 <= segment["tokens"] <= MAX_TOKENS:
            raise RecordError(f"a segment has 0 to {MAX_TOKENS} tokens, not {segment['tokens']}")
        yield segment["id"], segment["tokens"]


def _shifted(call: Call, first: float) -> Call:
    """Its times counted from the workflow's first call. A file may count them from any moment."""
    if first == 0:
        return call
    start = None if call.start_s is None else call.start_s - first
    end = None if call.end_s is None else call.end_s - first
    return replace(call, start_s=start, end_s=end)


def _of(trace: WorkflowTrace, facts: Mapping[str, AgentFacts]) -> dict[str, AgentFacts]:
    return {call.agent: facts[call.agent] for call in trace.calls if call.agent in facts}
