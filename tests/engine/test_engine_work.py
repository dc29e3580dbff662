"""What a real engine says of its work: time, tokens, sizes."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine_under_test import DEVICE_TOKENS, EngineUnderTest
from mixed_load import tokens

from cache_actor.messages import Work

LIMIT_S = 10.0


def work_when(engine: EngineUnderTest, true: Callable[[Work], bool]) -> Work:
    """What it says once it is true; beats come a few times a second."""
    deadline = time.monotonic() + LIMIT_S
    while not true(work := engine.health.load().work):
        assert time.monotonic() < deadline, work
        time.sleep(0.05)
    return work


def settled(engine: EngineUnderTest) -> Work:
    """What it says in a beat of a moment from now on."""
    asked = time.monotonic()
    return work_when(engine, lambda work: engine.last_beat > asked)


def call(engine: EngineUnderTest, prompt: list[int], output: int, workflow: str) -> None:
    body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
    status, answer = engine.answer(body, "completion", workflow=workflow, agent="agent")
    assert status == 200, answer


class TestWork:
    def test_tokens_are_those_that_were_computed_and_generated(self, engine: EngineUnderTest) -> None:
        before = settled(engine)
        prompt = tokens(900, 700)  # more than one chunk
        call(engine, prompt, 5, "work-1")
        after = work_when(engine, lambda work: work.output >= before.output + 5)
        assert after.computed - before.computed == 700
        assert after.output - before.output == 5
        call(engine, prompt, 3, "work-1")
        again = work_when(engine, lambda work: work.output >= after.output + 3)
        assert again.computed - after.computed < 20
        assert again.reused - after.reused == 700 - (again.computed - after.computed)
        assert again.output - after.output == 3

    def test_time_is_spent_on_prefill_and_decode_and_none_of_it_idle(self, engine: EngineUnderTest) -> None:
        before, begin = settled(engine), time.monotonic()
        call(engine, tokens(901, 700), 20, "work-2")
        passed = time.monotonic() - begin
        after = settled(engine)
        prefill, busy = after.prefill_s - before.prefill_s, after.busy_s - before.busy_s
        assert 0 < prefill < busy <= passed + 0.5
        assert settled(engine).busy_s == after.busy_s

    def test_the_sizes_of_the_tiers_are_known_without_any_plan(self, engine: EngineUnderTest) -> None:
        work = settled(engine)
        assert work.device_tokens == DEVICE_TOKENS
        assert work.host_tokens >= 4 * DEVICE_TOKENS

    def test_what_is_computed_again_is_told_while_it_runs(self, engine: EngineUnderTest) -> None:
        before = settled(engine)
        assert before.regret is not None
        prompt = tokens(902, 1000)
        call(engine, prompt, 1, "work-again")
        for number in range(14):  # more than both tiers hold
            call(engine, tokens(910 + number, 1000), 1, f"work-{number}")
        call(engine, prompt, 1, "work-again")
        after = settled(engine)
        assert after.regret is not None
        assert after.regret - before.regret >= 900
        assert after.regret == engine.ask("figures")["counters"]["regret"]
