"""Workflows out of spans that follow OpenTelemetry's semantic conventions for generative AI.

The conventions are in development: attributes have been renamed, and instrumentations follow different versions. Known
are those of opentelemetry-semantic-conventions 0.66 and their predecessors (`gen_ai.usage.prompt_tokens`, spans without
an operation's name, OpenLLMetry's `llm.*`). See opentelemetry.io/docs/specs/semconv/gen-ai/.

* A call is a span of the operation `chat`, `text_completion` or `generate_content`. If there is another one in it, with
  no agent and no tool between them, two instrumentations have seen the same, and the inner one is the call.
* Its agent is the one it names itself, else the nearest span around it that does, else the workflow's, else the
  service.
* Its workflow is its conversation: its own, or that of a span around it, or the only one of the trace; without any
  it is the trace.
* Its tool is the first that an `execute_tool` span in it, or after it under the same agent, ran before the next call.

Spans may come in any order, more than once (the first counts), and without their parents.
"""

from __future__ import annotations

import reprlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from predictor_actor.base import WorkflowTrace
from predictor_actor.trace_import import Label, labelled
from predictor_actor.trace_record import RecordError, make_call, make_trace
from predictor_actor.trace_spans import Attributes, Span

SOURCE = "opentelemetry"
# No span is looked for further up.
MAX_DEPTH = 128

_CALLS = frozenset({"chat", "text_completion", "generate_content", "completion"})
_SCOPES = frozenset({"invoke_agent", "execute_tool"})
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_AGENT = ("gen_ai.agent.name", "gen_ai.agent.id")
_CONVERSATION = "gen_ai.conversation.id"
# An agent that neither spans nor their service name.
UNNAMED = "agent"


@dataclass(slots=True)
class _Made:
    """A call with its span, and where a tool's span that belongs to it would be."""

    span: Span
    scope: tuple[str, str]
    agent: str
    prompt_tokens: int
    output_tokens: int
    tool: str | None = None


class OtelImport:
    """Gathers spans, and makes workflows of them when all have come.

    Args:
        label: what names a caller, as in `JsonlImport`; spans have no phase.
    """

    def __init__(self, label: Label = "agent") -> None:
        self._label = label
        self._spans: dict[tuple[str, str], Span] = {}

    def add(self, span: Span) -> None:
        """Takes a span, whatever it is of: it may be around calls."""
        self._spans.setdefault((span.trace, span.id), span)

    def traces(self) -> tuple[list[WorkflowTrace], list[str]]:
        """The workflows in the order of their beginnings, and for each span and workflow left out the reason."""
        problems: list[str] = []
        calls = self._calls(problems)
        self._find_tools(calls)
        workflows: dict[str, list[_Made]] = {}
        talks = self._talks()
        for made in calls:
            workflows.setdefault(self._workflow(made.span, talks), []).append(made)
        traces = []
        for name, members in workflows.items():
            try:
                traces.append(_trace(name, members, self._label))
            except RecordError as error:
                problems.append(f"workflow {reprlib.repr(name)}: {error}")
        return sorted(traces, key=lambda trace: trace.started_at), problems

    def _calls(self, problems: list[str]) -> list[_Made]:
        """All calls, in the order of time, those of unknown time last."""
        spans = [span for span in self._spans.values() if _is_call(span)]
        outer = {around for span in spans for around in self._within_scope(span)}
        found = []
        for span in spans:
            if (span.trace, span.id) in outer:
                continue
            try:
                found.append(self._made(span))
            except RecordError as error:
                problems.append(f"span {span.id} of trace {span.trace}: {error}")
        return sorted(found, key=lambda made: _order(made.span))

    def _made(self, span: Span) -> _Made:
        times = (None if moment is None else moment / 1e9 for moment in (span.start_ns, span.end_ns))
        tokens = _tokens(span.attributes, _INPUT), _tokens(span.attributes, _OUTPUT)
        call = make_call(self._agent(span), *tokens, *times)
        return _Made(span, self._scope(span), call.agent, call.prompt_tokens, call.output_tokens)

    def _around(self, span: Span) -> Iterator[Span]:
        """The spans around it that are known, the nearest first."""
        for _ in range(MAX_DEPTH):
            parent = self._spans.get((span.trace, span.parent)) if span.parent else None
            if parent is None:
                return
            yield parent
            span = parent

    def _within_scope(self, span: Span) -> Iterator[tuple[str, str]]:
        """The spans around it up to the run of its agent or tool, the nearest first."""
        for around in self._around(span):
            if _operation(around) in _SCOPES:
                return
            yield around.trace, around.id

    def _agent(self, span: Span) -> str:
        around = [span, *self._around(span)]
        # What runs a whole workflow bears a name of its own, since conventions 0.1 under the agent's attribute.
        agents = [one for one in around if _operation(one) != "invoke_workflow"]
        names = (_text(one.attributes, *_AGENT) for one in (*agents, *around))
        return next((name for name in names if name), span.service or UNNAMED)

    def _scope(self, span: Span) -> tuple[str, str]:
        """The run of an agent, or of a tool, that a span belongs to, else its trace."""
        return span.trace, next((one.id for one in self._around(span) if _operation(one) in _SCOPES), "")

    def _talks(self) -> dict[str, str]:
        """Of each trace that has one conversation and no other, that."""
        found: dict[str, set[str]] = {}
        for span in self._spans.values():
            if talk := _text(span.attributes, _CONVERSATION):
                found.setdefault(span.trace, set()).add(talk)
        return {trace: next(iter(talks)) for trace, talks in found.items() if len(talks) == 1}

    def _workflow(self, span: Span, talks: dict[str, str]) -> str:
        own = (_text(one.attributes, _CONVERSATION) for one in (span, *self._around(span)))
        return next((talk for talk in own if talk), talks.get(span.trace, span.trace))

    def _find_tools(self, calls: Sequence[_Made]) -> None:
        by_span = {(made.span.trace, made.span.id): made for made in calls}
        by_scope: dict[tuple[str, str], list[_Made]] = {}
        for made in calls:
            if made.span.start_ns is not None:
                by_scope.setdefault(made.scope, []).append(made)
        tools = [span for span in self._spans.values() if _operation(span) == "execute_tool"]
        for tool in sorted(tools, key=_order):
            name = _text(tool.attributes, "gen_ai.tool.name")
            within = next((by_span[key] for key in self._within_scope(tool) if key in by_span), None)
            asked = within or _before(by_scope.get(self._scope(tool), ()), tool)
            if name and asked is not None and asked.tool is None:
                asked.tool = name


def _trace(name: str, members: Sequence[_Made], label: Label) -> WorkflowTrace:
    first = min((made.span.start_ns for made in members if made.span.start_ns is not None), default=0)

    def since(moment: int | None) -> float | None:
        return None if moment is None else (moment - first) / 1e9

    calls = []
    for made in members:
        agent = labelled(made.agent, None, made.tool, label)
        times = since(made.span.start_ns), since(made.span.end_ns)
        calls.append(make_call(agent, made.prompt_tokens, made.output_tokens, *times, made.tool))
    return make_trace(name, calls, started_at=first / 1e9, source=SOURCE)


def _is_call(span: Span) -> bool:
    operation = _operation(span)
    # Before conventions 1.27 no operation was named, and all spans with a model were calls.
    return operation in _CALLS or (not operation and "gen_ai.request.model" in span.attributes)


def _operation(span: Span) -> str:
    return _text(span.attributes, "gen_ai.operation.name", "llm.request.type")


def _before(calls: Sequence[_Made], tool: Span) -> _Made | None:
    """The latest of the calls, which are in the order of time, that began before the tool."""
    if tool.start_ns is None:
        return None
    place = bisect_right(calls, tool.start_ns, key=lambda made: made.span.start_ns or 0)
    return calls[place - 1] if place else None


def _order(span: Span) -> tuple[bool, int, int]:
    return span.start_ns is None, span.start_ns or 0, span.end_ns or 0


def _tokens(attributes: Attributes, names: Sequence[str]) -> Any:
    value = next((attributes[name] for name in names if name in attributes), 0)
    if type(value) is str and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)  # OTLP/JSON writes integers of 64 bits as text
    return int(value) if type(value) is float and value.is_integer() else value


def _text(attributes: Attributes, *names: str) -> str:
    """The first of the attributes that is a text and not empty."""
    return next((value for name in names if type(value := attributes.get(name)) is str and value), "")
