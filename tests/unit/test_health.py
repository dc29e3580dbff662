"""An engine is judged by its progress: patience for long forwards, none for silence."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import Beat
from serving.config import HealthConfig
from serving.health import EngineHealth

CONFIG = HealthConfig(stall_s=10, stall_s_per_token=0.05, no_progress_s=100)
START = 1000.0


def beat(
    forwards: int = 0, forward_tokens: int = 0, running: int = 0, waiting: int = 0, rank: int = 0, pid: int = 100
) -> Beat:
    return Beat(rank, pid, forwards, forward_tokens, running, waiting, at=0.0)


def health() -> EngineHealth:
    return EngineHealth(CONFIG, START)


class TestStartUp:
    def test_before_the_first_beat_it_is_healthy_for_stall_s_and_no_longer(self) -> None:
        engine = health()
        assert engine.problem(START + 10) is None
        problem = engine.problem(START + 10.5)
        assert problem is not None
        assert "no scheduler has given a sign of life" in problem
        assert "10.5 s" in problem

    def test_a_late_first_beat_makes_it_healthy_again(self) -> None:
        engine = health()
        assert engine.problem(START + 50)
        engine.on_beat(beat(), START + 50)
        assert engine.problem(START + 50) is None


class TestStall:
    @given(st.lists(st.floats(0.01, 9.99), max_size=50))
    def test_idle_beats_are_healthy_for_ever(self, gaps: list[float]) -> None:
        engine, now = health(), START
        for gap in gaps * 10:
            now += gap
            assert engine.problem(now) is None
            engine.on_beat(beat(), now)

    def test_no_beat_for_longer_than_stall_s_is_stuck(self) -> None:
        engine = health()
        engine.on_beat(beat(pid=4321), START)
        assert engine.problem(START + 10) is None
        problem = engine.problem(START + 10.5)
        assert problem is not None
        assert "pid 4321" in problem
        assert "10.5 s" in problem
        assert "limit 10.0 s" in problem
        assert "its loop" in problem

    @given(st.integers(1, 200_000))
    def test_an_announced_forward_gets_patience_by_its_tokens(self, tokens: int) -> None:
        engine = health()
        engine.on_beat(beat(), START)
        engine.on_beat(beat(forward_tokens=tokens, running=1), START + 1)
        patience = 10 + 0.05 * tokens
        assert engine.problem(START + 1 + patience * 0.999) is None
        problem = engine.problem(START + 1 + patience * 1.001)
        assert problem is not None
        assert f"a forward of {tokens} tokens" in problem

    def test_patience_ends_with_the_forward(self) -> None:
        engine = health()
        engine.on_beat(beat(forward_tokens=100_000), START)
        engine.on_beat(beat(forwards=1, running=1), START + 5)
        assert engine.problem(START + 16)

    def test_one_silent_rank_of_two_suffices(self) -> None:
        engine = health()
        engine.on_beat(beat(rank=1, pid=101), START)
        for second in range(12):
            engine.on_beat(beat(rank=0, pid=100, forwards=second, running=1), START + second)
        problem = engine.problem(START + 11)
        assert problem is not None
        assert re.search(r"rank 1 \(pid 101\).* 11\.0 s", problem)


class TestProgress:
    def test_calls_that_wait_without_a_forward_are_stuck_though_the_scheduler_lives(self) -> None:
        engine = health()
        for second in range(101):
            assert engine.problem(START + second) is None
            engine.on_beat(beat(forwards=7, running=1, waiting=3, pid=4321), START + second)
        problem = engine.problem(START + 102)
        assert problem is not None
        assert "pid 4321" in problem
        assert "1 running, 3 waiting" in problem
        assert "102.0 s" in problem

    def test_a_chunked_prefill_that_keeps_stepping_is_healthy_for_ever(self) -> None:
        engine = health()
        for chunk in range(200):
            start = START + 90 * chunk
            engine.on_beat(beat(forwards=chunk, forward_tokens=2048, running=1, waiting=5), start)
            assert engine.problem(start + 89) is None
        assert engine.problem(START + 90 * 200) is None

    def test_a_forward_longer_than_no_progress_s_keeps_its_patience(self) -> None:
        engine = health()
        engine.on_beat(beat(waiting=1), START)
        engine.on_beat(beat(forward_tokens=8000, waiting=1), START + 1)
        assert engine.problem(START + 400) is None
        engine.on_beat(beat(forwards=1, waiting=1), START + 400)
        assert engine.problem(START + 405) is None

    def test_time_without_calls_does_not_count(self) -> None:
        engine = health()
        for second in range(0, 500, 5):
            engine.on_beat(beat(forwards=7), START + second)
        engine.on_beat(beat(forwards=7, waiting=1), START + 500)
        assert engine.problem(START + 505) is None

    def test_ranks_that_differ_by_a_forward_hide_no_standstill(self) -> None:
        """Each rank's counter is compared with its own: rank 1's is not progress because rank 0's differs."""
        engine = health()
        for second in range(0, 110, 5):
            engine.on_beat(beat(forwards=7, waiting=1, rank=0, pid=100), START + second)
            engine.on_beat(beat(forwards=8, waiting=1, rank=1, pid=101), START + second)
        assert engine.problem(START + 106)

    def test_an_idle_rank_hides_no_standstill_of_another(self) -> None:
        engine = health()
        for second in range(0, 110, 5):
            engine.on_beat(beat(forwards=7, waiting=1, rank=0, pid=100), START + second)
            engine.on_beat(beat(forwards=9, rank=0, pid=102), START + second)
        problem = engine.problem(START + 106)
        assert problem is not None
        assert "pid 100" in problem


class TestProcessExit:
    def test_it_is_final(self) -> None:
        engine = health()
        assert engine.dead is None
        engine.on_process_exit("process scheduler (pid 7) ended with exit code -9")
        engine.on_process_exit("a later consequence")
        engine.on_beat(beat(forwards=1), START + 1)
        assert engine.problem(START + 1) == "process scheduler (pid 7) ended with exit code -9"
        assert engine.dead == "process scheduler (pid 7) ended with exit code -9"


class TestSnapshot:
    def test_it_is_the_newest_of_rank_0(self) -> None:
        engine = health()
        assert engine.snapshot() == {"running": 0, "waiting": 0, "forwards": 0}
        engine.on_beat(beat(forwards=9, running=9, rank=1, pid=101), START)
        engine.on_beat(beat(forwards=1, running=1), START)
        engine.on_beat(beat(forwards=3, running=2, waiting=4), START + 1)
        assert engine.snapshot() == {"running": 2, "waiting": 4, "forwards": 3}
