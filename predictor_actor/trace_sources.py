"""Recorded workflows of any format that is known, in files and folders, as traces."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from predictor_actor.trace_import import Label
from predictor_actor.trace_otel import OtelImport
from predictor_actor.trace_reader import JSONL_SUFFIX, Progress, ReadResult, TraceError, files_in, read_jsonl
from predictor_actor.trace_record import RecordError
from predictor_actor.trace_spans import documents, spans

Format = Literal["auto", "jsonl", "otel"]
FORMATS: tuple[str, ...] = get_args(Format)

SUFFIXES = (JSONL_SUFFIX, ".json")
# A file of spans is read as a whole, for a span may come before the one it is in.
MAX_SPANS_BYTES = 1 << 29
_PEEK_BYTES = 1 << 16
_SPAN_KEYS = (b'"resourceSpans"', b'"resource_spans"', b'"traceId"', b'"trace_id"')


def read_source(
    source: Path, format: Format = "auto", label: Label = "agent", progress: Progress = lambda done, total: None
) -> ReadResult:
    """The traces in a file, or in the files of a folder that end in `.jsonl` or `.json`.

    Spans of all files are taken together, for a trace may be spread over them.

    Args:
        format: `jsonl`, workflows one a line (`trace_import.py`); `otel`, spans (`trace_otel.py`); `auto`, each file
            as it looks.

    Raises:
        TraceError: it cannot be read, or it is not seen of which format a file is, or a file of spans is too large.
    """
    files = files_in(source, SUFFIXES)
    result = ReadResult()
    total = sum(size for _, size in files)
    gathered = OtelImport(label)
    start = 0
    for path, size in files:

        def told(done: int, of: int, start: int = start, size: int = size) -> None:
            progress(start + size * done // max(1, of), total)

        if (format if format != "auto" else _format_of(path)) == "otel":
            _gather(path, size, gathered, result, told)
        else:
            done = 0
            for read in read_jsonl(path, label, result):
                done += read
                told(done, size)
        start += size
    traces, problems = gathered.traces()
    result.traces += traces
    for problem in problems:
        result.skip(source, "its spans", problem)
    return result


def _format_of(path: Path) -> Format:
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK_BYTES)
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error
    if b'"calls"' in head or not head.strip():
        return "jsonl"
    if any(key in head for key in _SPAN_KEYS):
        return "otel"
    raise TraceError(
        f"{path} begins neither like workflows nor like spans; say what it is with --format jsonl or --format otel"
    )


def _gather(path: Path, size: int, gathered: OtelImport, result: ReadResult, progress: Progress) -> None:
    if size > MAX_SPANS_BYTES:
        raise TraceError(f"{path} has {size} bytes, and at most {MAX_SPANS_BYTES} are read as spans: split it by lines")
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot read the traces in {path}: {error.strerror}") from error
    for line, place, document in documents(text):
        for span in [document] if isinstance(document, RecordError) else spans(document):
            if isinstance(span, RecordError):
                result.skip(path, f"line {line}", str(span))
            else:
                gathered.add(span)
        progress(place, len(text))
