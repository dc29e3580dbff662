"""Spans of OpenTelemetry as workflows: in any order, more than once, without parents, by old names and new."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor_actor.base import Call
from predictor_actor.trace_otel import OtelImport
from predictor_actor.trace_record import RecordError
from predictor_actor.trace_sources import read_source
from predictor_actor.trace_spans import documents, spans
from predictor_actor.traces import ReadResult, TraceError

BEGIN = 1_800_000_000 * 10**9
TRACE = "5b8efff798038103d269b633813fc60c"


def otlp(value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}.get(type(value))
    return {kind: str(value) if type(value) is int else value} if kind else {"arrayValue": {"values": []}}


def span(
    id: int, parent: int | None, start: float, end: float, trace: str = TRACE, **attributes: Any
) -> dict[str, Any]:
    """As in OTLP/JSON; `gen_ai.` is left out of the names of attributes, `__` stands for a dot."""
    named = {"gen_ai." + name.replace("__", "."): value for name, value in attributes.items()}
    found = {
        "traceId": trace,
        "spanId": f"{id:016x}",
        "name": "a span",
        "kind": 3,
        "startTimeUnixNano": str(BEGIN + int(start * 1e9)),
        "endTimeUnixNano": str(BEGIN + int(end * 1e9)),
        "attributes": [{"key": name, "value": otlp(value)} for name, value in named.items()],
    }
    return found | ({"parentSpanId": f"{parent:016x}"} if parent else {})


def chat(id: int, parent: int | None, start: float, end: float, **attributes: Any) -> dict[str, Any]:
    tokens = {"usage__input_tokens": 100 * id, "usage__output_tokens": id}
    return span(id, parent, start, end, **{"operation__name": "chat", **tokens, **attributes})


def agent(id: int, parent: int | None, start: float, end: float, name: str, **attributes: Any) -> dict[str, Any]:
    return span(id, parent, start, end, operation__name="invoke_agent", agent__name=name, **attributes)


def tool(id: int, parent: int | None, start: float, end: float, name: str) -> dict[str, Any]:
    return span(id, parent, start, end, operation__name="execute_tool", tool__name=name)


def request(*members: dict[str, Any], service: str = "crew") -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(members)}]}]}


def read(folder: Path, text: str, **more: Any) -> ReadResult:
    path = folder / "spans.jsonl"
    path.write_text(text)
    return read_source(path, "otel", **more)


def read_spans(folder: Path, *members: dict[str, Any], **more: Any) -> ReadResult:
    return read(folder, json.dumps(request(*members)), **more)


KEYS = [
    *["resourceSpans", "scopeSpans", "spans", "resource", "attributes", "key", "value", "traceId", "spanId"],
    *["context", "start_time", "parent_id", "gen_ai.operation.name", "stringValue"],
]

# A planner that looks something up and hands over to a writer; both under one root.
RUN = [
    span(1, None, 0, 20, operation__name="invoke_workflow", conversation__id="talk"),
    agent(2, 1, 0, 9, "planner"),
    chat(3, 2, 0.5, 2),
    tool(4, 2, 2, 4, "search"),
    tool(5, 2, 3, 5, "read"),
    chat(6, 2, 5, 7),
    agent(7, 1, 9, 20, "writer"),
    chat(8, 7, 10, 15),
]
CALLS = (
    Call("planner", 300, 3, 0.0, 1.5, "search"),
    Call("planner", 600, 6, 4.5, 6.5),
    Call("writer", 800, 8, 9.5, 14.5),
)


class TestWorkflows:
    def test_agents_tools_tokens_and_times_come_from_the_spans(self, tmp_path: Path) -> None:
        result = read_spans(tmp_path, *RUN)
        assert result.bad == 0
        [trace] = result.traces
        assert (trace.workflow, trace.started_at, trace.calls) == ("talk", BEGIN / 1e9 + 0.5, CALLS)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
    @given(st.permutations(RUN), st.lists(st.sampled_from(RUN), max_size=4), st.integers(0, 8))
    def test_order_repetitions_and_batches_do_not_matter(
        self, tmp_path: Path, order: list[Any], again: list[Any], cut: int
    ) -> None:
        batches = order[:cut], [*order[cut:], *again]
        result = read(tmp_path, "\n".join(json.dumps(request(*batch)) for batch in batches))
        assert [trace.calls for trace in result.traces] == [CALLS]

    def test_spans_whose_parents_are_missing_still_make_a_workflow(self, tmp_path: Path) -> None:
        calls = chat(3, 2, 0, 1), chat(4, 99, 2, 3, agent__name="named"), chat(5, 2, 4, 5, agent__id="asst_5")
        [trace] = read_spans(tmp_path, *calls).traces
        assert trace.workflow == TRACE
        assert [call.agent for call in trace.calls] == ["crew", "named", "asst_5"]

    def test_without_a_name_of_any_kind_the_agent_is_called_agent(self, tmp_path: Path) -> None:
        result = read(tmp_path, json.dumps(request(chat(3, None, 0, 1), service="unknown_service:python")))
        assert [call.agent for call in result.traces[0].calls] == ["agent"]

    def test_a_workflows_name_is_no_agents_unless_there_is_no_other(self, tmp_path: Path) -> None:
        root = span(1, None, 0, 9, operation__name="invoke_workflow", agent__name="crew of two")
        calls = chat(2, 1, 1, 2), agent(3, 1, 3, 9, "writer"), chat(4, 3, 4, 5)
        [trace] = read_spans(tmp_path, root, *calls).traces
        assert [call.agent for call in trace.calls] == ["crew of two", "writer"]

    def test_the_turns_of_a_conversation_are_one_workflow(self, tmp_path: Path) -> None:
        turns = [
            chat(number, None, number, number + 0.5, trace=f"{number:032x}", conversation__id="c") for number in (2, 1)
        ]
        other = chat(9, None, 0, 1, trace=f"{9:032x}")
        result = read_spans(tmp_path, *turns, other)
        assert [(trace.workflow, len(trace.calls)) for trace in result.traces] == [(f"{9:032x}", 1), ("c", 2)]
        assert [call.prompt_tokens for call in result.traces[1].calls] == [100, 200]

    def test_the_only_conversation_of_a_trace_is_that_of_all_its_calls(self, tmp_path: Path) -> None:
        assert len(read_spans(tmp_path, chat(2, 99, 0, 1, conversation__id="c"), chat(3, 98, 2, 3)).traces) == 1

    def test_a_call_that_two_instrumentations_saw_counts_once(self, tmp_path: Path) -> None:
        outer = span(2, None, 0, 3, operation__name="chat", agent__name="a")
        [trace] = read_spans(tmp_path, outer, chat(3, 2, 1, 2), tool(4, 2, 2, 3, "look")).traces
        assert trace.calls == (Call("a", 300, 3, 0.0, 1.0, "look"),)

    def test_an_agent_run_as_a_tool_of_a_call_makes_calls_of_its_own(self, tmp_path: Path) -> None:
        members = agent(1, None, 0, 9, "boss"), chat(2, 1, 0, 9), tool(3, 2, 1, 8, "helper")
        inner = agent(4, 3, 1, 8, "helper"), chat(5, 4, 2, 3), tool(6, 4, 3, 4, "look")
        [trace] = read_spans(tmp_path, *members, *inner).traces
        assert [(call.agent, call.tool) for call in trace.calls] == [("boss", "helper"), ("helper", "look")]

    def test_the_tool_may_be_part_of_the_label(self, tmp_path: Path) -> None:
        [trace] = read_spans(tmp_path, *RUN, label="agent+tool").traces
        assert [call.agent for call in trace.calls] == ["planner:search", "planner", "writer"]

    @pytest.mark.parametrize(
        "attributes",
        [
            {"gen_ai.operation.name": "text_completion", "gen_ai.usage.prompt_tokens": 7},
            {"gen_ai.operation.name": "generate_content", "gen_ai.usage.input_tokens": 7.0},
            {"gen_ai.system": "openai", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 7},
            {"llm.request.type": "chat", "gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.input_tokens": 7},
            {"llm.request.type": "completion", "llm.usage.prompt_tokens": 7},
        ],
    )
    def test_older_names_are_known(self, tmp_path: Path, attributes: dict[str, Any]) -> None:
        found = span(1, None, 0, 1)
        found["attributes"] = [{"key": name, "value": otlp(value)} for name, value in attributes.items()]
        [trace] = read_spans(tmp_path, found).traces
        assert [call.prompt_tokens for call in trace.calls] == [7]

    @pytest.mark.parametrize("operation", ["embeddings", "retrieval", "create_agent", "execute_tool", "invoke_agent"])
    def test_other_operations_are_no_calls(self, tmp_path: Path, operation: str) -> None:
        assert read_spans(tmp_path, chat(1, None, 0, 1, operation__name=operation)) == ReadResult()

    def test_spans_around_each_other_do_not_hang_it(self, tmp_path: Path) -> None:
        assert len(read_spans(tmp_path, agent(1, 2, 0, 1, "a"), agent(2, 1, 0, 1, "b"), chat(3, 1, 0, 1)).traces) == 1
        assert read_spans(tmp_path, chat(1, 2, 0, 1), chat(2, 1, 0, 1)).traces == []

    def test_a_span_that_has_not_ended_or_has_no_times_is_taken(self, tmp_path: Path) -> None:
        open_, timeless = chat(2, None, 3, 4), chat(3, None, 0, 0)
        open_["endTimeUnixNano"] = "0"
        del timeless["startTimeUnixNano"], timeless["endTimeUnixNano"]
        [trace] = read_spans(tmp_path, timeless, open_).traces
        assert [(call.prompt_tokens, call.start_s, call.end_s) for call in trace.calls] == [
            (200, 0, None),
            (300, None, None),
        ]


class TestForms:
    def test_what_the_sdk_prints_is_read(self, tmp_path: Path) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        out = io.StringIO()
        provider = sdk.TracerProvider()
        provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=out)))
        tracer = provider.get_tracer("test")
        naming = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}
        usage = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3}
        run = tracer.start_span("invoke_agent planner", attributes=naming, start_time=BEGIN)
        with sdk.trace_api.use_span(run, end_on_exit=False):
            tracer.start_span("chat m", attributes=usage, start_time=BEGIN + 10**9).end(BEGIN + 3 * 10**9)
        run.end(BEGIN + 4 * 10**9)
        as_list = "[" + ",".join(part + "}" for part in out.getvalue().split("\n}")[:-1]) + "]"
        for text in (out.getvalue(), "a line of a log\n" + out.getvalue(), as_list):
            [trace] = read(tmp_path, text).traces
            assert trace.started_at == BEGIN / 1e9 + 1
            assert trace.calls == (Call("planner", 12, 3, 0.0, 2.0),)

    def test_otlp_is_read_by_its_older_and_its_snake_case_names(self, tmp_path: Path) -> None:
        text = json.dumps(request(*RUN), indent=2)
        renamed = text.replace("scopeSpans", "instrumentationLibrarySpans")
        for camel in ("resourceSpans", "scopeSpans", "traceId", "spanId", "parentSpanId", "startTimeUnixNano"):
            snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in camel)
            text = text.replace(camel, snake)
        for each in (text, renamed, text.replace(TRACE, TRACE.upper()), json.dumps(RUN)):
            assert [len(trace.calls) for trace in read(tmp_path, each).traces] == [3]

    @pytest.mark.parametrize(
        "bad",
        [
            '{"resourceSpans": [',
            '{"resourceSpans": 3}',
            '{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}',
            '{"resourceSpans": [{"scopeSpans": ["x"]}]}',
            '{"resourceSpans": ["x"]}',
            "[3]",
            "{}",
            '{"traceId": "0000", "spanId": "1"}',
            json.dumps(chat(9, None, 0, 1) | {"startTimeUnixNano": "soon"}),
            json.dumps(chat(9, None, 0, 1) | {"startTimeUnixNano": -5}),
            json.dumps(chat(9, None, 2, 1)),
            json.dumps(chat(9, None, 0, 1, usage__input_tokens=-1)),
            json.dumps(chat(9, None, 0, 1, usage__input_tokens="many")),
            json.dumps(chat(9, None, 0, 1, agent__name="n" * 300)),
            json.dumps(chat(9, None, 0, 1, conversation__id="n" * 300, trace="f" * 32)),
            "[" * 100_000,
            "not json",
        ],
    )
    def test_what_is_faulty_costs_only_itself(self, tmp_path: Path, bad: str) -> None:
        good = json.dumps(request(*RUN))
        for text in (f"{bad}\n{good}\n", f"{good}\n{bad}\n"):
            result = read(tmp_path, text)
            assert [trace.calls for trace in result.traces] == [CALLS]
            assert result.bad == 1
            assert str(result.problems[0])

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(KEYS),
                    inner,
                    max_size=6,
                )
            ),
            max_leaves=25,
        )
    )
    def test_no_document_makes_it_fail(self, document: Any) -> None:
        gathered = OtelImport()
        for _, _, found in documents(json.dumps(document)):
            for one in [] if isinstance(found, RecordError) else spans(found):
                if not isinstance(one, RecordError):
                    gathered.add(one)
        gathered.traces()


class TestSources:
    def test_a_folder_of_both_kinds_is_read_as_it_looks(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"workflow_id": "w", "calls": [{"agent": "a"}]}\n')
        (tmp_path / "b.json").write_text(json.dumps(request(*RUN[:4])))
        (tmp_path / "c.jsonl").write_text(json.dumps(request(*RUN[4:])))
        (tmp_path / "d.jsonl").touch()
        (tmp_path / "e.txt").write_text("not looked at")
        seen: list[tuple[int, int]] = []
        result = read_source(tmp_path, progress=lambda *at: seen.append(at))
        assert [trace.calls for trace in result.traces] == [(Call("a"),), CALLS]
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1]

    def test_what_looks_like_nothing_known_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"a": 1}')
        with pytest.raises(TraceError, match="--format"):
            read_source(tmp_path / "x.json")

    def test_a_file_of_spans_that_is_too_large_is_refused_with_the_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("predictor_actor.trace_sources.MAX_SPANS_BYTES", 10)
        with pytest.raises(TraceError, match="split it"):
            read_spans(tmp_path, *RUN)
