"""What limits are worth as tables, for the page and the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence

from serving.benchmark.replay.admission_study import Mark, Outcome
from serving.benchmark.result_text import NONE, TextTable, seconds


def outcome_tables(outcomes: Sequence[Outcome]) -> list[TextTable]:
    """One for each policy: a row for each rate and limit."""
    headers = [
        "rate, limit",
        "mean latency, s",
        "p99, s",
        "TTFT, s",
        "longest held, s",
        "hits",
        "computed again",
        "all over after, s",
    ]
    tables = []
    for policy in dict.fromkeys(one.policy for one in outcomes):
        rows = [
            [
                f"{one.rate:g} x, {one.limit}",
                *map(seconds, (one.mean_s, one.p99_s, one.ttft_s, one.waited_s)),
                f"{one.hit:.1%}",
                f"{one.again:.1%}",
                seconds(one.seconds),
            ]
            for one in outcomes
            if one.policy == policy
        ]
        tables.append(TextTable(policy, headers, rows))
    return tables


def mark_table(marks: Sequence[Mark]) -> TextTable:
    """A row for each limit that was found: how it compares with the best fixed one, and with none."""
    headers = ["rate, policy, limit", "best fixed", "mean ÷ best's", "mean ÷ off's", "p99 ÷ off's", "lru, off ÷ mean"]
    rows = [
        [
            f"{mark.rate:g} x, {mark.policy}, {mark.limit}",
            mark.best,
            *(f"{ratio:.2f}" for ratio in (mark.over_best, mark.over_off, mark.p99_over_off)),
            NONE if mark.lru_over is None else f"{mark.lru_over:.2f}",
        ]
        for mark in marks
    ]
    return TextTable("Limits that are found, beside fixed ones", headers, rows)
