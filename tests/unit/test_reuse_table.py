"""The table of chances: what it says untrained, that it learns, backs off, forgets, explains itself and stays small."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.policies import make_policy
from cache_actor.policies.reuse import FEATURES
from cache_actor.policies.reuse_table import MAX_CELLS, PRIOR, ReuseTable, Situation

AGENTS = st.sampled_from(["planner", "coder", None])
SITUATIONS = st.builds(
    Situation,
    st.sampled_from(["private", "shared", "dormant", "unnamed"]),
    st.integers(0, 8),
    st.integers(0, 5),
    st.none() | st.integers(0, 7),
    AGENTS,
    AGENTS,
    AGENTS,
    st.integers(0, 1),
)
LABELS = st.floats(0, 1)
BASE = Situation("private", 1, 2, None, "coder", "planner", "tester", 0)


def table(features: tuple[str, ...] = FEATURES, evidence: float = 2.0, memory: int = 256) -> ReuseTable:
    return ReuseTable(features, evidence, memory)


class TestChance:
    @given(one=SITUATIONS, two=SITUATIONS)
    def test_untrained_nothing_is_told_apart(self, one: Situation, two: Situation) -> None:
        assert table().chance(one) == table().chance(two) == pytest.approx(PRIOR, abs=0.02)

    @given(seen=st.lists(st.tuples(SITUATIONS, LABELS), max_size=30), asked=SITUATIONS)
    def test_a_chance_lies_between_the_prior_and_the_labels(
        self, seen: list[tuple[Situation, float]], asked: Situation
    ) -> None:
        learned = table()
        for situation, label in seen:
            learned.learn(situation, label)
        known = [PRIOR, *(label for _, label in seen)]
        assert min(known) - 0.04 <= learned.chance(asked) <= max(known) + 0.04

    def test_what_was_often_used_again_is_likelier_than_what_was_not(self) -> None:
        learned = table()
        for _ in range(20):
            learned.learn(BASE, 0.9)
            learned.learn(BASE._replace(uses=1), 0.0)
        assert learned.chance(BASE) > 0.8
        assert learned.chance(BASE._replace(uses=1)) < 0.1

    def test_the_unseen_is_judged_by_what_is_most_like_it(self) -> None:
        learned = table()
        for _ in range(20):
            learned.learn(BASE, 1.0)
            learned.learn(BASE._replace(steps=7), 0.0)
        assert learned.chance(BASE._replace(agent="somebody", previous="else")) > 0.8
        assert learned.chance(BASE._replace(steps=7, uses=5)) < 0.2

    @pytest.mark.parametrize("feature", FEATURES)
    def test_a_feature_that_is_off_makes_no_difference(self, feature: str) -> None:
        other = {
            "steps": {"steps": 5},
            "uses": {"uses": 5},
            "forecast": {"forecast": 5},
            "agents": {"agent": "x", "last_agent": "y"},
            "previous": {"previous": "x"},
            "returned": {"returned": 1},
        }[feature]
        for features, differs in ((FEATURES, True), (tuple(name for name in FEATURES if name != feature), False)):
            learned = table(features)
            for _ in range(50):
                learned.learn(BASE, 1.0)
                learned.learn(BASE._replace(**other), 0.0)  # type: ignore[arg-type]
            assert (learned.chance(BASE) != learned.chance(BASE._replace(**other))) == differs  # type: ignore[arg-type]

    def test_the_past_is_forgotten(self) -> None:
        learned = table(memory=32)
        for _ in range(5000):
            learned.learn(BASE, 1.0)
        for _ in range(100):
            learned.learn(BASE, 0.0)
        assert learned.chance(BASE) < 0.1


class TestSize:
    def test_it_is_bounded_and_keeps_what_was_seen_most(self) -> None:
        learned = table()
        for _ in range(50):
            learned.learn(BASE, 1.0)
        for number in range(3 * MAX_CELLS):
            learned.learn(Situation("private", number % 9, 0, None, f"agent-{number}", "b", "c"), 0.0)
            assert len(learned) <= MAX_CELLS
        assert learned.chance(BASE) > 0.9

    @given(seen=st.lists(st.tuples(SITUATIONS, LABELS), min_size=1, max_size=60))
    def test_no_situation_is_known_better_than_the_one_above_it(self, seen: list[tuple[Situation, float]]) -> None:
        learned = table(memory=8)
        for situation, label in seen:
            learned.learn(situation, label)
        learned._forget()
        for situation, _ in seen:
            known = [situation[:length] in learned._cells for length in learned._levels]
            assert known == sorted(known, reverse=True), "a cell is kept without the one above it"


class TestExplain:
    @given(seen=st.lists(st.tuples(SITUATIONS, LABELS), max_size=30), asked=SITUATIONS)
    def test_the_last_level_is_the_chance(self, seen: list[tuple[Situation, float]], asked: Situation) -> None:
        learned = table()
        for situation, label in seen:
            learned.learn(situation, label)
        why = learned.explain(asked)
        assert learned.chance(asked) == pytest.approx(why[-1].chance if why else PRIOR, abs=0.04)
        assert all(set(a.situation.items()) <= set(b.situation.items()) for a, b in itertools.pairwise(why))


class TestPolicy:
    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"features": "steps,moon"}, "steps,uses,forecast,agents,previous,returned"),
            ({"features": 3}, "features is 3"),
            ({"residence": 0}, "residence is 0"),
            ({"samples": 2.5}, "whole numbers"),
            ({"guard": "yes"}, "guard is 'yes'"),
        ],
    )
    def test_a_wrong_parameter_is_named_with_what_is_possible(
        self, parameters: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            make_policy("reuse", parameters)


class TestState:
    @given(seen=st.lists(st.tuples(SITUATIONS, LABELS), max_size=40), asked=SITUATIONS)
    def test_another_table_goes_on_from_it(self, seen: list[tuple[Situation, float]], asked: Situation) -> None:
        learned, other = table(), table()
        for situation, label in seen:
            learned.learn(situation, label)
        other.restore(other.parsed(json.loads(json.dumps(learned.cells(1 << 20)))))
        assert other.chance(asked) == pytest.approx(learned.chance(asked), abs=0.04)

    def test_with_little_room_what_was_seen_most_is_kept(self) -> None:
        learned = table()
        for number in range(500):
            learned.learn(BASE._replace(agent="x" * number), 1.0)
            learned.learn(BASE, 0.0)
        cells = learned.cells(2000)
        assert len(json.dumps(cells)) < 3000
        assert [cell[0] for cell in cells][:1] == [["private"]]

    @pytest.mark.parametrize(
        "cells",
        [
            None,
            {"a": 1},
            [[["private"], 1.0]],
            [[["private", 1, 2, 3, 4], 1.0, 0.5]],
            [[["private"], -1.0, 0.0]],
            [[["private"], 1.0, 5.0]],
            [[["private"], float("inf"), 1.0]],
            [[["private"], float("nan"), 1.0]],
            [[[["nested"]], 1.0, 1.0]],
            [["private", 1.0, 1.0]],
        ],
    )
    def test_what_is_no_state_changes_nothing(self, cells: object) -> None:
        learned = table()
        learned.learn(BASE, 1.0)
        before = learned.cells(1 << 20)
        with pytest.raises(ValueError, match="no cell of a table"):
            learned.restore(learned.parsed(cells))
        assert learned.cells(1 << 20) == before
