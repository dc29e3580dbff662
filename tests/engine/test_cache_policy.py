"""The `forecache` backend in a real engine under pressure: who goes, who stays, and that no answer changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import CONFIG, DEVICE_TOKENS, EngineUnderTest, run_engine
from mixed_load import mixed_load, tokens

from cache_actor.messages import PrefetchOrder
from cache_actor.policies import VALUE_ONE

AGENT_TOKENS = 200
OWN_TOKENS = 300


def ask(engine: EngineUnderTest, prompt: list[int], workflow: str, agent: str = "agent", final: bool = False) -> int:
    """Makes a call; the prompt tokens that were computed for it."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    status, answer = engine.answer(body, "completion", workflow=workflow, agent=agent, final=final)
    assert status == 200, answer
    usage = answer["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["device"])


def owned_by(engine: EngineUnderTest, workflow: str) -> list[dict[str, Any]]:
    return [node for node in engine.ask("dump")["nodes"] if workflow in node["owners"]]


def eventually_without_value(engine: EngineUnderTest, workflow: str) -> None:
    deadline = time.monotonic() + 20
    while any(node["value"] for node in owned_by(engine, workflow)):
        assert time.monotonic() < deadline, "its values do not lapse"
        time.sleep(0.1)


def fill(engine: EngineUnderTest, count: int, first_seed: int = 1000) -> None:
    """Pressure: other living workflows, each with a prompt of its own."""
    for i in range(count):
        ask(engine, tokens(first_seed + i, OWN_TOKENS), f"filler-{first_seed + i}")


@pytest.fixture(autouse=True)
def _lifecycle_again(engine: EngineUnderTest) -> Iterator[None]:
    """Each test leaves the policy as it found it, and a cache whose books are right."""
    RECEIPTS.clear()
    yield
    assert engine.ask("check") == {"consistent": True}
    engine.apply(policy="lifecycle", ends=[w for node in engine.ask("dump")["nodes"] for w in node["owners"]])


VARIANTS: dict[str, dict[str, Any]] = {
    "two tensor-parallel ranks": {"tp_size": 2},
    "pages of 16, overlap scheduling, storage": {
        "page_size": 16,
        "disable_overlap_schedule": False,
        "hicache_ratio": 1.2,  # so little that the host loses what storage keeps
        "hicache_storage_backend": "file",
        "hicache_storage_backend_extra_config": '{"prefetch_threshold": 64}',
    },
    "no host tier": {"enable_hierarchical_cache": False},
}


class TestLifecycle:
    def test_an_ended_workflows_nodes_go_first_though_they_are_the_most_recent(self, engine: EngineUnderTest) -> None:
        living, ended = tokens(1, OWN_TOKENS), tokens(2, OWN_TOKENS)
        ask(engine, living, "living")
        fill(engine, 3)
        ask(engine, ended, "ended", final=True)
        fill(engine, (DEVICE_TOKENS - 5 * OWN_TOKENS) // OWN_TOKENS + 1, first_seed=2000)
        assert ask(engine, living, "living") <= 1
        assert ask(engine, ended, "again") >= OWN_TOKENS - 1

    def test_what_is_shared_with_a_living_workflow_stays(self, engine: EngineUnderTest) -> None:
        anchor = tokens(3, AGENT_TOKENS)
        ask(engine, anchor + tokens(4, 50), "living")
        fill(engine, 3)
        ask(engine, anchor + tokens(5, 50), "ended", final=True)
        fill(engine, 4, first_seed=2000)
        assert ask(engine, anchor + tokens(6, 20), "third") <= 20 + 1

    def test_an_anchor_of_ended_workflows_outlives_their_private_nodes(self, engine: EngineUnderTest) -> None:
        anchor = tokens(7, AGENT_TOKENS)
        private = [tokens(8, 250), tokens(9, 250)]
        fill(engine, 3)
        for i, own in enumerate(private):
            ask(engine, anchor + own, f"ended-{i}", final=True)
        fill(engine, 3, first_seed=2000)
        assert ask(engine, anchor + tokens(10, 20), "next") <= 20 + 1
        assert ask(engine, anchor + private[0], "other") >= 249


def cached_on_device(engine: EngineUnderTest, workflow: str) -> int:
    """Device tokens that the workflow owns, by the engine's own word."""
    nodes = engine.ask("dump")["nodes"]
    return sum(node["tokens"] for node in nodes if workflow in node["owners"] and node["tier"] != "host")


class TestForecasts:
    def test_among_living_ones_the_lower_score_goes_and_a_forecast_changes_the_order(
        self, engine: EngineUnderTest
    ) -> None:
        prompts = {name: tokens(20 + i, OWN_TOKENS) for i, name in enumerate(("w0", "w1", "w2"))}
        assert engine.apply(policy="lookahead", parameters={}).accepted
        for name, prompt in prompts.items():
            ask(engine, prompt, name)
        value = {"w0": 5, "w1": 0, "w2": 1}
        engine.apply(tables={name: {"agent": v * VALUE_ONE} for name, v in value.items()})
        fill_with_value(engine, 4)
        assert [cached_on_device(engine, name) > 0 for name in prompts] == [True, False, True]
        engine.apply(tables={"w0": {}, "w2": {"agent": 5 * VALUE_ONE}})
        fill_with_value(engine, 1, first_seed=2000)
        assert [cached_on_device(engine, name) > 0 for name in ("w0", "w2")] == [False, True]

    def test_an_old_plan_is_refused_and_a_bad_policy_changes_nothing(self, engine: EngineUnderTest) -> None:
        refused = engine.apply(policy="no such policy")
        assert not refused.accepted
        assert "no such policy" in refused.reason
        assert engine.ask("report")["policy"] != "no such policy"
        first = engine.apply()
        engine.plan -= 1
        again = engine.apply()
        assert first.accepted
        assert not again.accepted
        assert "not newer" in again.reason

    def test_values_lapse_with_their_plan(self, engine: EngineUnderTest) -> None:
        ask(engine, tokens(30, OWN_TOKENS), "lapsing")
        engine.apply(tables={"lapsing": {"agent": VALUE_ONE}}, time_to_live_s=0.5)
        assert any(node["value"] == 1.0 for node in engine.ask("dump")["nodes"])
        eventually(lambda: all(node["value"] is None for node in engine.ask("dump")["nodes"]))

    def test_at_run_time_lru_gives_stock_behaviour_again(self, engine: EngineUnderTest) -> None:
        engine.apply(policy="lru")
        first, second = tokens(40, OWN_TOKENS), tokens(41, OWN_TOKENS)
        ask(engine, first, "living")
        ask(engine, second, "ended", final=True)
        fill(engine, 5)
        assert ask(engine, second, "again") <= 1
        assert ask(engine, first, "living") >= OWN_TOKENS - 1


class TestWhatIsTold:
    """What the coordinator goes by."""

    def test_renewed_values_outlive_the_plan_that_brought_them(self, engine: EngineUnderTest) -> None:
        ask(engine, tokens(50, OWN_TOKENS), "renewed")
        engine.apply(policy="lookahead", tables={"renewed": {"agent": VALUE_ONE}}, time_to_live_s=3.0)
        first_lapses = time.monotonic() + 3.0
        while time.monotonic() < first_lapses + 0.5:
            time.sleep(0.2)
            engine.apply(time_to_live_s=3.0, renew=True)
        assert {node["value"] for node in owned_by(engine, "renewed")} == {1.0}
        eventually_without_value(engine, "renewed")

    def test_what_a_workflow_holds_and_has_lost_is_told(self, engine: EngineUnderTest) -> None:
        ask(engine, tokens(51, OWN_TOKENS), "watched")
        engine.apply()  # what was lost before is told
        held = engine.apply(tables={"watched": {"agent": VALUE_ONE}}).residency["watched"]
        assert held[0] >= OWN_TOKENS
        fill(engine, DEVICE_TOKENS // OWN_TOKENS + 1, first_seed=3000)
        report = engine.apply(tables={"watched": {"agent": VALUE_ONE}, "nobody": {"agent": 1}})
        lost = {(one.workflow, one.tier): one.tokens for one in report.evictions}
        assert lost["watched", "device"] == held[0] - report.residency["watched"][0] > 0
        assert "nobody" not in report.residency
        assert engine.apply().evictions == []

    def test_it_says_which_plan_it_has_applied_whoever_sent_it(self, engine: EngineUnderTest) -> None:
        latest = engine.apply().applied
        assert latest == engine.plan
        engine.plan -= 1
        again = engine.apply()
        assert not again.accepted
        assert again.applied == latest

    def test_a_warm_up_is_there_for_the_call_and_counts_as_none(self, engine: EngineUnderTest) -> None:
        anchor = tokens(52, AGENT_TOKENS)
        before = engine.ask("figures")["counters"]
        calls = len(engine.started_calls)
        engine.run(engine.api.warm_up(anchor, "warm"))
        assert engine.ask("figures")["counters"].get("prompt", 0) == before.get("prompt", 0)
        assert len(engine.started_calls) == calls
        assert ask(engine, [*anchor, *tokens(53, 20)], "warmed") <= 21


class TestReuse:
    def test_it_learns_what_comes_again_and_says_so(self, engine: EngineUnderTest) -> None:
        """An agent's prompt comes again after more than the device holds of others that do not."""
        assert engine.apply(policy="reuse", parameters={}).accepted
        again = tokens(70, AGENT_TOKENS)
        computed = []
        for number in range(12):
            computed.append(ask(engine, again, "living", "again"))
            for other in range(9):
                ask(engine, tokens(3000 + 10 * number + other, OWN_TOKENS), "living", "once")
        assert computed[0] == AGENT_TOKENS
        assert computed[-1] <= 1
        figures = engine.ask("figures")
        assert figures["policy"] == "reuse"
        assert set(figures["would_compute"]) == {"reuse", "lifecycle", "lookahead", "lru"}
        chances = [node["chance"]["device"] for node in engine.ask("dump")["nodes"] if node["chance"]]
        assert any(one["evidence"] for one in chances)
        assert engine.ask("learned")["tiers"]["device"]


class TestPrefetch:
    def test_it_puts_the_next_agents_prefix_on_the_device_and_the_call_computes_a_handful(
        self, engine: EngineUnderTest
    ) -> None:
        prompt = tokens(50, OWN_TOKENS)
        ask(engine, prompt, "paused", "coder")
        fill(engine, 7)
        assert cached_on_device(engine, "paused") == 0
        engine.apply(ends=[f"filler-{1000 + i}" for i in range(5)])
        engine.apply(prefetches=[PrefetchOrder(1, "paused", "coder", VALUE_ONE, 10_000)])
        eventually(lambda: cached_on_device(engine, "paused") >= OWN_TOKENS)
        assert ask(engine, prompt, "paused", "coder") <= 1
        report = engine.ask("report")
        assert report["counters"]["prefetch_used"] >= OWN_TOKENS - 1
        assert report["counters"].get("active_evictions_by_prefetch", 0) == 0

    def test_it_never_evicts_what_is_active_even_when_told_to_load_more_than_fits(
        self, engine: EngineUnderTest
    ) -> None:
        for i in range(4):
            ask(engine, tokens(60 + i, OWN_TOKENS), f"asleep-{i}")
        fill(engine, 6)
        before = {f"filler-{1000 + i}": cached_on_device(engine, f"filler-{1000 + i}") for i in range(6)}
        orders = [PrefetchOrder(10 + i, f"asleep-{i}", "agent", VALUE_ONE, 10_000) for i in range(4)]
        report = engine.apply(prefetches=orders, time_to_live_s=1.0)
        assert report.accepted
        receipts = eventually(lambda: collected(engine, 4))
        assert {receipt["status"] for receipt in receipts} <= {"expired", "clipped", "accepted"}
        assert before == {name: cached_on_device(engine, name) for name in before}
        assert engine.ask("report")["counters"].get("active_evictions_by_prefetch", 0) == 0

    def test_orders_end_with_their_workflow(self, engine: EngineUnderTest) -> None:
        ask(engine, tokens(70, OWN_TOKENS), "short")
        fill(engine, 8)
        engine.apply(prefetches=[PrefetchOrder(20, "short", "agent", 1, 10_000)])
        report = engine.apply(ends=["short"])
        RECEIPTS.extend({"order": receipt.order, "status": receipt.status} for receipt in report.receipts)
        receipts = eventually(lambda: collected(engine, 1))
        assert [receipt["order"] for receipt in receipts] == [20]


RECEIPTS: list[dict[str, Any]] = []


def collected(engine: EngineUnderTest, count: int) -> list[dict[str, Any]]:
    """The receipts so far, once there are `count` of them."""
    RECEIPTS.extend(engine.ask("report")["receipts"])
    return RECEIPTS if len(RECEIPTS) >= count else []


def eventually(check: Callable[[], Any], limit_s: float = 20) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s} s")


def fill_with_value(engine: EngineUnderTest, count: int, first_seed: int = 1000) -> None:
    """Pressure by workflows that are worth more than any other."""
    for i in range(count):
        name = f"valued-{first_seed + i}"
        ask(engine, tokens(first_seed + i, OWN_TOKENS), name)
        engine.apply(tables={name: {"agent": 9 * VALUE_ONE}})


class TestEquality:
    def test_answers_are_those_of_a_plain_engine(self, engine: EngineUnderTest, plain_answers: dict[str, str]) -> None:
        """200 mixed prompts: shared prefixes, evictions, host hits, prefetches, aborts, ends, forecasts by chance."""
        answers = engine.run(mixed_load(engine), timeout=300)
        counters = engine.ask("figures")["counters"]
        assert answers == plain_answers
        assert counters["evicted_device_retired"] > 0
        assert counters["evicted_device_low_value"] > 0
        assert counters["hit_host"] > 0
        assert counters["prefetch_loaded"] > 0
        assert counters.get("active_evictions_by_prefetch", 0) == 0

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_answers_are_those_of_a_plain_engine_in_every_mode(
        self, variant: str, plain_answers: dict[str, str], tmp_path: Path
    ) -> None:
        cache = CONFIG.cache.model_copy(update={"policy": "reuse"})
        changed = VARIANTS[variant]
        stores = "hicache_storage_backend" in changed
        if stores:
            changed = changed | {"file_storage_path": str(tmp_path)}
        done = run_engine(CONFIG.model_copy(update={"engine": CONFIG.engine | changed, "cache": cache}), "mixed")
        assert done["answers"] == plain_answers
        assert done["check"] == {"consistent": True}
        assert done["counters"].get("active_evictions_by_prefetch", 0) == 0
        assert sum(count for name, count in done["counters"].items() if name.startswith("evicted_device")) > 0
        assert (done["counters"]["hit_storage"] > 0) == stores
