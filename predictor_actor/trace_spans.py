"""Spans of OpenTelemetry, out of the JSON that its exporters write.

Read are OTLP/JSON (`{"resourceSpans": [{"scopeSpans": [{"spans": […]}]}]}`, its older and its snake_case names too), a
document in each line or one in the file; spans as the SDKs' console exporters print them, one after another or as a
list; and lists of OTLP's spans. What is between documents and is not JSON is skipped and told.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from predictor_actor.trace_record import RecordError

_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_VALUES = ("stringValue", "intValue", "doubleValue", "string_value", "int_value", "double_value")

_HEX = re.compile("[0-9a-fA-F]+")

_decoder = json.JSONDecoder()

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """What an import needs of a span.

    Attributes:
        parent: id of the span it was begun in; empty: none.
        start_ns, end_ns: nanoseconds since 1970; None: not known, or not ended.
        attributes: those of text and numbers alone.
        service: `service.name` of the process it comes from.
    """

    trace: str
    id: str
    parent: str
    start_ns: int | None
    end_ns: int | None
    attributes: Attributes
    service: str = ""


def documents(text: str) -> Iterator[tuple[int, int, Any]]:
    """The JSON documents in a text; a RecordError for each faulty one.

    Yields, with each, the number of its first line and where in the text the search goes on.
    """
    place, line, counted = 0, 1, 0
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if place >= len(text):
            return
        line += text.count("\n", counted, place)
        counted = place
        try:
            found, place = _decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            found = RecordError(f"it is not JSON: {error}")
            place = _next_document(text, place)
        yield line, place, found


def spans(document: Any) -> Iterator[Span | RecordError]:
    """The spans in a document, and for each part of it that is none what is wrong with it."""
    if type(document) is list:
        for one in document:
            yield from spans(one) if type(one) is dict else [_no_span(one)]
    elif type(document) is dict and (groups := _first(document, "resourceSpans", "resource_spans")) is not None:
        for group in _objects(groups):
            if isinstance(group, RecordError):
                yield group
                continue
            service = _service(group.get("resource"))
            for scope in _objects(_first(group, *_SCOPES)):
                if isinstance(scope, RecordError):
                    yield scope
                    continue
                for one in _objects(scope.get("spans")):
                    yield one if isinstance(one, RecordError) else _tried(one, service)
    elif type(document) is dict:
        yield _tried(document, _service(document.get("resource")))
    else:
        yield _no_span(document)


def _tried(span: dict[str, Any], service: str) -> Span | RecordError:
    try:
        return _span(span, service)
    except RecordError as error:
        return error


def _span(span: dict[str, Any], service: str) -> Span:
    context = span.get("context")
    ids = context if type(context) is dict else span
    start = _first(span, "startTimeUnixNano", "start_time_unix_nano", "start_time")
    end = _first(span, "endTimeUnixNano", "end_time_unix_nano", "end_time")
    trace = _id(_first(ids, "traceId", "trace_id"))
    own = _id(_first(ids, "spanId", "span_id"))
    if not trace or not own:
        raise _no_span(span)
    parent = _id(_first(span, "parentSpanId", "parent_span_id", "parent_id"))
    return Span(trace, own, parent, _nanoseconds(start), _nanoseconds(end), _attributes(span), service)


def _attributes(holder: dict[str, Any]) -> Attributes:
    """Of a list of OTLP's keys and values, or of an object."""
    given = holder.get("attributes")
    if type(given) is dict:
        return {key: value for key, value in given.items() if type(value) in (str, int, float)}
    found = {}
    for pair in given if type(given) is list else []:
        if type(pair) is dict and type(pair.get("key")) is str and type(pair.get("value")) is dict:
            value = _first(pair["value"], *_VALUES)
            if type(value) in (str, int, float):
                found[pair["key"]] = value
    return found


def _service(resource: Any) -> str:
    name = _attributes(resource).get("service.name") if type(resource) is dict else None
    # The SDKs' word for a process that nobody has named.
    return name if type(name) is str and not name.startswith("unknown_service") else ""


def _id(value: Any) -> str:
    """An id, written alike however an exporter writes it; empty if it is none or all zeros, which is none."""
    name = value.removeprefix("0x") if type(value) is str else ""
    name = name.lower() if _HEX.fullmatch(name) else name
    return name if name.strip("0") else ""


def _nanoseconds(value: Any) -> int | None:
    """Of a number, of one written as text, or of a date; 0 is not known."""
    if value is None or value == "":
        return None
    try:
        if type(value) is str and not value.isdecimal():
            moment = datetime.fromisoformat(value)
            return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
        if type(value) in (int, str) and 0 <= int(value) < 1 << 64:
            return int(value) or None
    except (ValueError, OverflowError):
        pass
    raise RecordError(f"a time is in nanoseconds since 1970 or a date, not {reprlib.repr(value)}")


def _objects(given: Any) -> Iterator[dict[str, Any] | RecordError]:
    if given is None:
        return
    if type(given) is not list:
        yield _no_span(given)
        return
    for one in given:
        yield one if type(one) is dict else _no_span(one)


def _first(holder: dict[str, Any], *names: str) -> Any:
    """The value of the first of the names that is there."""
    return next((holder[name] for name in names if holder.get(name) is not None), None)


def _no_span(found: Any) -> RecordError:
    return RecordError(f"it is no span, which has a trace id and a span id, nor holds any: {reprlib.repr(found)}")


def _next_document(text: str, place: int) -> int:
    """Where the next line begins that may begin a document."""
    while (place := text.find("\n", place)) >= 0:
        place += 1
        if text.startswith(("{", "["), place):
            return place
    return len(text)
