"""How evenly several engines were loaded, as reports say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmark_records import PROMPT, workflow_calls
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.balance_figures import balance_figures
from serving.benchmark.records import CallRecord, RoundRecord


def played(number: int, *engines: str, of: tuple[str, ...] = ("a", "b")) -> tuple[RoundRecord, list[CallRecord]]:
    """A round of one call on each of the engines named."""
    calls = workflow_calls("p", "reuse, workflow", number, "w", [1.0] * len(engines), hit=400)
    routed = [replace(call, engine=name, route="sticky") for call, name in zip(calls, engines, strict=True)]
    return RoundRecord("p", "reuse, workflow", number, 10.0, engines=list(of)), routed


def test_the_busiest_engine_is_set_against_the_mean_and_rounds_are_averaged() -> None:
    figures = balance_figures([played(0, "a", "a", "a", "b"), played(1, "a", "b")])
    assert figures["balance"] == pytest.approx({"calls": 1.25, "prompt": 1.25, "computed": 1.25})
    assert (figures["engines"], figures["routes"]) == (2, {"sticky": 6})


def test_an_engine_without_a_call_counts() -> None:
    assert balance_figures([played(0, "a", "a", of=("a", "b", "c"))])["balance"]["calls"] == 3


def test_tokens_that_were_hit_are_no_work() -> None:
    record, calls = played(0, "a", "b")
    calls[0] = replace(calls[0], hit_device=PROMPT, hit_host=0)
    assert balance_figures([(record, calls)])["balance"] == pytest.approx({"calls": 1, "prompt": 1, "computed": 2})


def test_one_engine_and_old_records_have_no_balance() -> None:
    assert balance_figures([played(0, "a", of=("a",))])["balance"] == {}
    old = RoundRecord("p", "lru", 0, 10.0), workflow_calls("p", "lru", 0, "w", [1.0])
    assert balance_figures([old]) == {"engines": 0, "balance": {}, "routes": {}}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_it_is_from_even_to_all_on_one(engines: list[str]) -> None:
    balance = balance_figures([played(0, *engines, of=("a", "b", "c"))])["balance"]
    assert all(1 <= value <= 3 for value in balance.values())
