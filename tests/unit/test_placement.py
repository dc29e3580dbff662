"""Where workflows are placed: one engine each, never above the bound, and moved only with their engine."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serving.routing.placement import Placement

BOUND = 1.25
MAX_WORKFLOWS = 12
ENGINES = [f"engine-{i}" for i in range(5)]
engine_sets = st.sets(st.sampled_from(ENGINES))
workflow_ids = st.integers(0, 30).map("w{}".format)
anchors = st.sampled_from([None, "planner", "coder"])
calls_in_flight = st.dictionaries(st.sampled_from(ENGINES), st.integers(0, 9))


def placed(engines: list[str], *workflows: str) -> Placement:
    placement = Placement(BOUND)
    placement.set_engines(engines)
    for workflow in workflows:
        placement.place(workflow, anchor=None, tagged=True)
    return placement


def most(live: int, engines: int) -> int:
    return math.ceil(BOUND * live / engines)


class AgainstANaiveModel(RuleBasedStateMachine):
    """The model: a list of (workflow, engine), the longest unused first. It does not know how engines are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = Placement(BOUND, MAX_WORKFLOWS)
        self.engines: set[str] = set()
        self.known: list[tuple[str, str]] = []

    @rule(
        workflow=workflow_ids,
        anchor=anchors,
        tagged=st.booleans(),
        calls=calls_in_flight,
        wanted=st.sampled_from([None, None, None, *ENGINES]),
    )
    def place(self, workflow: str, anchor: str | None, tagged: bool, calls: dict[str, int], wanted: str | None) -> None:
        engine = self.placement.place(workflow, anchor, tagged, calls, wanted)
        if not self.engines:
            assert engine is None
            return
        assert engine in self.engines
        before = dict(self.known).get(workflow)
        if before is None:
            self.known.append((workflow, engine))
            load = Counter(e for _, e in self.known)
            if wanted in self.engines:
                assert engine == wanted
            else:
                assert load[engine] <= most(len(self.known), len(self.engines))
            self.known = self.known[-MAX_WORKFLOWS:]
        else:
            assert engine == before
            self.known.remove((workflow, engine))
            self.known.append((workflow, engine))

    @rule(workflow=workflow_ids)
    def release(self, workflow: str) -> None:
        self.placement.release(workflow)
        self.known = [(w, e) for w, e in self.known if w != workflow]

    @rule(engines=engine_sets)
    def set_engines(self, engines: set[str]) -> None:
        self.placement.set_engines(engines)
        self.keep(engines)

    @rule(engine=st.sampled_from(ENGINES))
    def drop_engine(self, engine: str) -> None:
        self.placement.drop_engine(engine)
        self.keep(self.engines - {engine})

    def keep(self, engines: set[str]) -> None:
        self.engines = set(engines)
        self.known = [(w, e) for w, e in self.known if e in engines]

    @invariant()
    def same_as_the_model(self) -> None:
        load = Counter(engine for _, engine in self.known)
        assert self.placement.load() == {engine: load[engine] for engine in self.engines}
        assert set(self.placement.engines()) == self.engines
        for workflow, engine in self.known:
            assert self.placement.engine_of(workflow) == engine


TestAgainstANaiveModel = AgainstANaiveModel.TestCase


class TestWorkflows:
    def test_a_workflow_stays_on_its_engine_whatever_the_call_says(self) -> None:
        placement = placed(ENGINES)
        first = placement.place("w", "planner", tagged=True)
        for anchor in (None, "planner", "coder"):
            for busy in ENGINES:
                assert placement.place("w", anchor, tagged=True, calls={busy: 99}) == first
                assert placement.place("w", anchor, tagged=False, calls={busy: 99}) == first

    def test_without_engines_there_is_no_place(self) -> None:
        assert Placement().place("w", None, tagged=True) is None
        assert Placement().engine_of("w") is None

    @given(st.integers(1, 60), st.integers(1, 5))
    def test_growing_load_never_passes_the_bound(self, workflows: int, engines: int) -> None:
        placement = placed(ENGINES[:engines], *(f"w{i}" for i in range(workflows)))
        assert max(placement.load().values()) <= most(workflows, engines)

    @given(st.lists(st.text(max_size=12), min_size=8, max_size=8, unique=True))
    def test_eight_workflows_on_two_engines_use_both(self, names: list[str]) -> None:
        load = placed(ENGINES[:2], *names).load()
        assert sorted(load.values()) in ([3, 5], [4, 4])

    def test_a_released_workflow_no_longer_counts(self) -> None:
        placement = placed(ENGINES[:2], "a", "b", "c")
        placement.release("b")
        placement.release("b")
        placement.release("never placed")
        assert sum(placement.load().values()) == 2
        assert placement.engine_of("b") is None

    def test_the_longest_unused_is_forgotten_at_the_limit(self) -> None:
        placement = Placement(BOUND, max_workflows=3)
        placement.set_engines(ENGINES)
        for workflow in ("a", "b", "c", "a", "d"):
            placement.place(workflow, None, tagged=True)
        assert placement.engine_of("b") is None
        assert all(placement.engine_of(workflow) for workflow in "acd")
        assert sum(placement.load().values()) == 3

    def test_ids_that_are_not_valid_unicode_are_placed(self) -> None:
        assert placed(ENGINES, "\ud800").engine_of("\ud800") in ENGINES


class TestUntagged:
    @given(st.integers(1, 40), st.integers(2, 5))
    def test_equal_anchors_share_an_engine_until_the_bound(self, workflows: int, engines: int) -> None:
        placement = placed(ENGINES[:engines])
        home = placement.place("w0", "planner", tagged=False)
        assert home is not None
        for i in range(1, workflows):
            full = placement.load()[home] == most(i + 1, engines)
            assert (placement.place(f"w{i}", "planner", tagged=False) == home) is not full

    def test_without_an_anchor_the_fewest_calls_decide_and_then_the_fewest_workflows(self) -> None:
        placement = placed(ENGINES[:3])
        assert placement.place("a", None, tagged=False, calls={ENGINES[0]: 2, ENGINES[1]: 1}) == ENGINES[2]
        assert placement.place("b", None, tagged=False, calls={ENGINES[0]: 1, ENGINES[1]: 1}) == ENGINES[0]
        assert placement.place("c", None, tagged=False, calls={}) == ENGINES[1]

    def test_without_an_anchor_the_bound_holds_too(self) -> None:
        placement = placed(ENGINES[:2])
        for i in range(8):
            placement.place(f"w{i}", None, tagged=False, calls={ENGINES[1]: 1})
        assert placement.load() == {ENGINES[0]: 5, ENGINES[1]: 3}


class TestEnginesComeAndGo:
    @given(st.sets(workflow_ids), st.integers(1, 4))
    def test_a_new_engine_moves_nobody(self, workflows: set[str], engines: int) -> None:
        placement = placed(ENGINES[:engines], *workflows)
        before = {w: placement.engine_of(w) for w in workflows}
        placement.set_engines(ENGINES)
        assert {w: placement.place(w, None, tagged=True) for w in workflows} == before

    @given(st.sets(workflow_ids, min_size=1), st.sampled_from(ENGINES))
    def test_an_engine_that_goes_moves_only_its_own_workflows(self, workflows: set[str], gone: str) -> None:
        placement = placed(ENGINES, *workflows)
        before = {w: placement.engine_of(w) for w in workflows}
        placement.drop_engine(gone)
        placement.drop_engine("never there")
        for workflow, engine in before.items():
            assert placement.engine_of(workflow) == (None if engine == gone else engine)
            moved_to = placement.place(workflow, None, tagged=True)
            assert (moved_to == engine) is (engine != gone)

    @given(st.sets(workflow_ids), st.permutations(ENGINES))
    def test_two_placements_agree_on_fresh_workflows_below_the_bound(self, names: set[str], order: list[str]) -> None:
        for name in names:
            one, other = Placement(overload_bound=100), Placement(overload_bound=100)
            one.set_engines(ENGINES)
            other.set_engines(order)
            assert one.place(name, None, tagged=True) == other.place(name, "ignored", tagged=True)

    def test_when_the_last_engine_comes_back_under_another_id_workflows_are_placed_anew(self) -> None:
        placement = placed(["old"], "a", "b")
        placement.drop_engine("old")
        assert placement.place("a", None, tagged=True) is None
        assert placement.load() == {}
        placement.set_engines(["new"])
        assert placement.load() == {"new": 0}
        assert placement.place("a", None, tagged=True) == "new"
        assert placement.engine_of("b") is None
        placement.release("b")
        assert placement.load() == {"new": 1}

    def test_engines_may_be_given_by_code_that_asks_the_placement(self) -> None:
        placement = placed(ENGINES)
        placement.set_engines(engine for engine in ENGINES if engine in placement.engines())
        assert len(placement.engines()) == len(ENGINES)
