"""Logs of other tools, turned into trace files. No rule guesses silently; each converter says what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from serving.benchmark.workloads import convert_mooncake, convert_openai, convert_weka, trace_format
from serving.benchmark.workloads.base import WorkloadError
from serving.benchmark.workloads.trace_format import TraceWorkflow

MOST_PROBLEMS = 20

Converter = Callable[[Path, list[str]], Iterator[TraceWorkflow]]
"""Reads a file or folder; yields workflows, and appends a sentence to the list for each record that is left out."""

_CONVERTERS: dict[str, Converter] = {
    "mooncake": convert_mooncake.requests,
    "mooncake-sessions": convert_mooncake.sessions,
    "openai": convert_openai.workflows,
    "weka": convert_weka.workflows,
}


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the source.

    Attributes:
        skipped: records (lines, requests or sessions, as the format has them) that were left out.
        problems: why, for the first 20 of them.
    """

    workflows: int
    calls: int
    skipped: int
    problems: tuple[str, ...] = ()


def format_names() -> list[str]:
    return sorted(_CONVERTERS)


def convert(format: str, source: str | Path, target: str | Path) -> Converted:
    """Writes a trace file, `target`, from a log in the given format.

    Records that cannot be read are left out and counted. The target appears when all is done, or not at all.

    Raises:
        WorkloadError: an unknown format, a file that cannot be read or written, or a source without a single record
            that can be read (says what is wrong with the first).
    """
    if format not in _CONVERTERS:
        raise WorkloadError(f"unknown format {format!r}; choose from {', '.join(format_names())}")
    source, target = Path(source), Path(target)
    partial = target.with_name(target.name + ".partial")
    problems: list[str] = []
    count = calls = 0
    try:
        with partial.open("w", encoding="utf-8") as out:
            for workflow in _CONVERTERS[format](source, problems):
                out.write(trace_format.write_line(workflow))
                count += 1
                calls += len(workflow.calls)
        if count == 0:
            reason = f"; the first: {problems[0]}" if problems else ""
            raise WorkloadError(f"{source} holds nothing in the format {format}: {len(problems)} left out{reason}")
        partial.replace(target)
    except OSError as error:
        raise WorkloadError(f"cannot convert {source} to {target}: {error.filename}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return Converted(count, calls, len(problems), tuple(problems[:MOST_PROBLEMS]))
