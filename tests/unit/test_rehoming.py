"""Who leaves an engine: whole workflows, one at a time, the most idle first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from snapshots_of_engines import ENGINES, WORKFLOWS, snapshot

from cache_actor.snapshots import Resident
from serving.routing.rehoming import Move, Rehoming

HELD = {name: Resident(1000) for name in WORKFLOWS[:4]}


def living(rehoming: Rehoming, engine: str, *workflows: str) -> Rehoming:
    """Each has made a call there, in this order."""
    for workflow in workflows:
        rehoming.called(workflow, engine)
        rehoming.answered(workflow, engine)
    return rehoming


OVERLOADED = [snapshot("a", needed_tokens=20_000, workflows=HELD), snapshot("b", needed_tokens=2000)]
DRAINING = [snapshot("a", draining=True, workflows=HELD), snapshot("b"), snapshot("c", needed_tokens=3000)]


class TestMoves:
    def test_the_most_idle_leaves_an_overloaded_engine_first_and_alone(self) -> None:
        rehoming = living(Rehoming(), "a", "w0", "w1", "w2", "w0")
        assert rehoming.moves(OVERLOADED, 0.0) == [Move("w1", "a", "b", "overload")]
        assert rehoming.moves(OVERLOADED, 1.0) == []

    def test_the_next_leaves_when_the_first_has_been_answered_elsewhere(self) -> None:
        rehoming = living(Rehoming(), "a", "w0", "w1")
        rehoming.moves(OVERLOADED, 0.0)
        rehoming.called("w0", "b")
        assert rehoming.answered("w0", "b") == "a"
        assert [move.workflow for move in rehoming.moves(OVERLOADED, 0.1)] == ["w1"]

    def test_or_has_ended_or_has_been_idle_for_too_long(self) -> None:
        rehoming = living(Rehoming(patience_s=10), "a", "w0", "w1", "w2")
        rehoming.moves(DRAINING, 0.0)
        rehoming.over("w0")
        assert [move.workflow for move in rehoming.moves(DRAINING, 0.1)] == ["w1"]
        assert rehoming.moves(DRAINING, 9.0) == []
        assert [move.workflow for move in rehoming.moves(DRAINING, 10.2)] == ["w2"]

    def test_nobody_leaves_while_a_call_of_his_runs(self) -> None:
        rehoming = Rehoming()
        rehoming.called("w0", "a")
        assert rehoming.moves(DRAINING, 0.0) == []

    def test_nobody_leaves_for_an_engine_that_is_hardly_better(self) -> None:
        close = [snapshot("a", needed_tokens=14_000, workflows=HELD), snapshot("b", needed_tokens=10_000)]
        assert living(Rehoming(), "a", "w0").moves(close, 0.0) == []

    def test_an_engine_that_drains_loses_all_to_the_one_with_the_least_pressure(self) -> None:
        rehoming = living(Rehoming(), "a", "w0", "w1")
        assert rehoming.moves(DRAINING, 0.0) == [Move("w0", "a", "b", "draining")]

    def test_what_was_on_an_engine_that_is_gone_is_spread_and_leaves_no_copy(self) -> None:
        rehoming = living(Rehoming(), "a", "w0", "w1")
        rehoming.called("w1", "a")  # lost with the engine
        rehoming.lost("a")
        left = [snapshot("b", workflows=HELD, needed_tokens=4000), snapshot("c", needed_tokens=3500)]
        assert rehoming.moves(left, 0.0) == [Move("w0", "a", "c", "gone")]
        rehoming.called("w0", "c")
        assert rehoming.answered("w0", "c") is None
        assert rehoming.moves(left, 0.1) == [Move("w1", "a", "c", "gone")]

    def test_there_may_be_nowhere_to_go(self) -> None:
        rehoming = living(Rehoming(), "a", "w0")
        assert rehoming.moves([DRAINING[0]], 0.0) == []
        assert rehoming.moves([], 0.0) == []

    def test_a_move_whose_target_is_lost_is_decided_anew(self) -> None:
        rehoming = living(Rehoming(), "a", "w0")
        rehoming.moves(DRAINING, 0.0)
        rehoming.lost("b")
        assert rehoming.target("w0") is None
        assert rehoming.moves([DRAINING[0], DRAINING[2]], 0.1) == [Move("w0", "b", "c", "gone")]


@given(
    st.lists(st.tuples(st.sampled_from(WORKFLOWS), st.sampled_from(ENGINES), st.booleans()), max_size=30),
    st.lists(st.tuples(st.integers(0, 30_000), st.booleans()), min_size=len(ENGINES), max_size=len(ENGINES)),
)
def test_moves_go_from_each_engine_once_to_another_that_does_not_drain(
    calls: list[tuple[str, str, bool]], states: list[tuple[int, bool]]
) -> None:
    rehoming = Rehoming()
    running: dict[str, int] = {}
    for workflow, engine, ends in calls:
        rehoming.called(workflow, engine)
        running[workflow] = running.get(workflow, 0) + 1
        if ends:
            rehoming.answered(workflow, engine)
            running[workflow] -= 1
    said = [
        snapshot(engine, needed_tokens=needed, draining=draining, workflows=HELD)
        for engine, (needed, draining) in zip(ENGINES, states, strict=True)
    ]
    moves = rehoming.moves(said, 0.0)
    assert len({move.source for move in moves}) == len(moves)
    for move in moves:
        assert running[move.workflow] == 0
        assert move.source != move.target
        assert not states[ENGINES.index(move.target)][1]
    assert rehoming.moves(said, 1.0) == [] or len(moves) < len(ENGINES)
