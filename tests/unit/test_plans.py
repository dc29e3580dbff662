"""Plans on the real cache: what they set, when it lapses, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sglang  # noqa: F401  # before its parts
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

from cache_actor.messages import EnginePlan, EngineReport, RequestIdentity, encode
from serving.benchmark.bare_cache import BareCache
from serving.sglang_plugin import plans
from serving.sglang_plugin.recorder import kv_hints


def plan(number: int, **fields: Any) -> EnginePlan:
    given: dict[str, Any] = {"time_to_live_s": 5.0, "ends": [], "tables": {}, "prefetches": []}
    return EnginePlan(number, **given | fields)


def first_call(bare: BareCache, workflow: str) -> Any:
    """A call's identity reaches the cache, as at its first match; the workflow as the ledger knows it."""
    envelope = decode_kv_hints_envelope(kv_hints(RequestIdentity(workflow, "planner"), "call"))
    caller = bare.cache.callers.of(SimpleNamespace(kv_hints=envelope))
    assert caller is not None
    return caller.owner


class TestTables:
    def test_a_forecast_that_comes_before_the_first_call_waits_for_it(self) -> None:
        bare = BareCache(100, "lookahead")
        bare.cache.apply(plan(1, tables={"w": {"planner": 7}}))
        owner = first_call(bare, "w")
        assert owner.table == {bare.cache.ledger.bit("planner"): 7}
        bare.cache.tick(5.0)
        assert owner.table is None

    @pytest.mark.parametrize("forgotten_by", ["time", "end", "another plan"])
    def test_it_does_not_wait_for_ever(self, forgotten_by: str) -> None:
        bare = BareCache(100, "lookahead")
        bare.cache.apply(plan(1, tables={"w": {"planner": 7}}))
        match forgotten_by:
            case "time":
                bare.cache.tick(5.0)
            case "end":
                bare.cache.end_workflow("w")
            case _:
                bare.cache.apply(plan(2, tables={"w": None}))
        assert first_call(bare, "w").table is None

    def test_those_that_wait_are_bounded(self) -> None:
        bare = BareCache(100, "lookahead")
        bare.cache.tables._limit = 10
        bare.cache.apply(plan(1, tables={f"w{number}": {"planner": number} for number in range(1, 15)}))
        assert [first_call(bare, f"w{number}").table is None for number in (4, 5, 14)] == [True, False, False]


class TestPrefetchMode:
    def test_a_plan_switches_it(self) -> None:
        bare = BareCache(100, host_tokens=200)
        assert bare.cache.apply(plan(1, prefetch="off")).accepted
        assert bare.cache.prefetcher.mode == "off"
        assert bare.cache.apply(plan(2)).accepted
        assert bare.cache.prefetcher.mode == "off"

    def test_an_unknown_one_is_refused_and_nothing_of_its_plan_is_done(self) -> None:
        bare = BareCache(100)
        report = bare.cache.apply(plan(1, prefetch="wild", policy="lookahead", parameters={}))
        assert not report.accepted
        assert "'wild'" in report.reason
        assert "conservative" in report.reason
        assert (bare.cache.applied_plan, bare.cache.policy.name) == (0, "lifecycle")


class TestAnswers:
    def test_a_plan_that_fails_half_way_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[EngineReport] = []
        bare = BareCache(100)
        receiver = plans.Plans("ipc://@nobody", said.append)
        monkeypatch.setattr(plans, "_cache_of", lambda scheduler: bare.cache)
        monkeypatch.setattr(plans, "_answers", lambda: True)
        monkeypatch.setattr(bare.cache.prefetcher, "accept", lambda *args: 1 / 0)
        receiver.on_plan(plans.PlanInput(encode(plan(1))))
        (report,) = said
        assert (report.plan, report.accepted) == (1, False)
        assert "ZeroDivisionError" in report.reason


class TestPools:
    def test_tokens_are_told_apart_by_tier_and_by_who_needs_them(self) -> None:
        bare = BareCache(100, host_tokens=200)
        bare.call(range(0, 30), "lives")
        bare.call(range(100, 120), "ends")
        bare.call(range(200, 240), None)
        bare.cache.end_workflow("ends")
        assert bare.cache.pools.occupancy() == {
            "device_active": 30,
            "device_retired": 20,
            "device_dormant": 40,
            "host_active": 30,
            "host_retired": 20,
            "host_dormant": 40,
            "prefetched_unused": 0,
        }
        bare.evict(20)
        occupied = bare.cache.pools.occupancy()
        assert (occupied["device_retired"], occupied["host_retired"]) == (0, 20)
