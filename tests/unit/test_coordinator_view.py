"""What `forecache top` shows."""

from __future__ import annotations

import time
from typing import Any

import pytest
from coordinator_reports import MadeUpEngine, began, over
from rich.console import Console

from cache_actor.admission_messages import AdmissionReport
from cache_actor.cluster import Cluster
from cache_actor.status import engine_status, why
from cache_actor.work_rates import WorkCosts
from serving.coordinator_view import limit_text, screen


def status(limit: int | None, found: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    cluster, now = Cluster(), time.time()
    cluster.hear(MadeUpEngine().report(began("w"), over("w")), now)
    cluster.hear_ingress(AdmissionReport("i", 1, 1, {"e": 4}, {"e": 1, "": 38}, [], []), now)
    engine = cluster.engines["e"]
    engine.limit, engine.found = limit, found
    told = {
        "mode": "on",
        "workflows": 1,
        "engines": [engine_status(engine, WorkCosts(), cluster.ingresses, now)],
        "predictor": None,
        "accuracy": [],
        "counts": {},
    }
    return told, [why(cluster.workflows["w"], True, decisions=False)]


def test_top_shows_who_is_in_who_waits_and_the_limit() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(screen(*status(5, 5)))
    row = next(line for line in console.export_text().splitlines() if line.split()[1:2] == ["e"])
    assert [part.strip() for part in row.split("│")[5:8]] == ["4", "5", "39"]


@pytest.mark.parametrize(("limit", "found", "text"), [(None, None, "–"), (5, 5, "5"), (None, 5, "(5)")])
def test_a_limit_that_is_only_found_stands_in_brackets(limit: int | None, found: int | None, text: str) -> None:
    told, _ = status(limit, found)
    assert limit_text(told["engines"][0]["admission"]) == text
