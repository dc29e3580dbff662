"""What every router promises, however it decides: one suite for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_of_engines import AGENTS, ENGINES, WORKFLOWS, snapshots

import serving.benchmark.routers  # noqa: F401  they register themselves
from cache_actor.snapshots import EngineSnapshot
from serving.routing import Decision, RoutedCall, Router, make_router, router_names

calls = st.builds(
    RoutedCall,
    st.sampled_from(WORKFLOWS),
    st.sampled_from(AGENTS),
    st.integers(0, 20_000),
    st.sampled_from([None, *WORKFLOWS]),
    st.sampled_from([None, *AGENTS]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 500)), max_size=4).map(tuple),
)
words = st.one_of(
    st.tuples(st.just("route"), calls, st.dictionaries(st.sampled_from(ENGINES), st.integers(0, 9))),
    st.tuples(st.just("see"), snapshots()),
    st.tuples(st.just("answered"), st.sampled_from(WORKFLOWS), st.sampled_from(ENGINES)),
    st.tuples(st.just("release"), st.sampled_from(WORKFLOWS)),
    st.tuples(st.just("adopt"), st.sampled_from(WORKFLOWS), st.sampled_from(ENGINES)),
    st.tuples(st.just("rehome")),
    st.tuples(st.just("drop"), st.sampled_from(ENGINES)),
    st.tuples(st.just("set"), st.sets(st.sampled_from(ENGINES))),
)
stories = st.lists(words, max_size=25)


@dataclass
class Played:
    """A router that was told a story: what it decided, and whether it kept its promises meanwhile."""

    router: Router
    engines: set[str] = field(default_factory=lambda: set(ENGINES))
    homes: dict[str, str] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    decisions: list[Decision | None] = field(default_factory=list)
    now: float = 0.0
    version: int = 0

    def __post_init__(self) -> None:
        self.router.set_engines(ENGINES)

    def hear(self, word: tuple[Any, ...]) -> None:
        self.now += 0.01
        match word:
            case "route", call, running:
                self._route(call, running)
            case "see", snapshot:
                self._see(snapshot)
            case "answered", workflow, engine:
                left = self.router.answered(workflow, engine)
                assert left != engine
            case "release", workflow:
                self.router.release(workflow)
                self.homes.pop(workflow, None)
            case "adopt", workflow, engine:
                self.router.adopt(workflow, engine)
                if engine in self.engines:
                    self.homes[workflow] = engine
            case ("rehome",):
                for workflow in self.router.rehome(self.now):
                    del self.homes[workflow]
            case "drop", engine:
                self.engines -= {engine}
                self.router.drop_engine(engine)
            case "set", engines:
                self.engines = set(engines)
                self.router.set_engines(engines)

    def _see(self, snapshot: EngineSnapshot) -> None:
        self.version += 1
        self.router.see(replace(snapshot, version=self.version, at=self.now))

    def _route(self, call: RoutedCall, running: dict[str, int]) -> None:
        decision = self.router.route(call, running, self.now)
        self.decisions.append(decision)
        if decision is None:
            assert not self.engines
            return
        assert decision.engine in self.engines
        if decision.why == "sticky":
            assert self.homes.get(call.workflow) == decision.engine
        self.homes[call.workflow] = decision.engine


@pytest.mark.parametrize("name", router_names())
class TestRouterContract:
    @given(stories)
    def test_an_engine_that_is_chosen_exists_and_sticky_is_where_it_was(self, name: str, story: list[Any]) -> None:
        played = Played(make_router(name))
        for word in story:
            played.hear(word)

    @given(stories)
    def test_the_same_words_get_the_same_answers(self, name: str, story: list[Any]) -> None:
        one, other = Played(make_router(name)), Played(make_router(name))
        for word in story:
            one.hear(word)
            other.hear(word)
        assert one.decisions == other.decisions

    def test_without_engines_there_is_no_decision_and_with_one_it_is_that_one(self, name: str) -> None:
        router = make_router(name)
        call = RoutedCall("w", "planner", 100, pieces=(("a", 100),))
        assert router.route(call, {}, 0.0) is None
        router.set_engines(["only"])
        decision = router.route(call, {"only": 99}, 0.0)
        assert decision is not None
        assert decision.engine == "only"
        router.drop_engine("only")
        assert router.route(call, {}, 0.0) is None

    def test_words_about_what_nobody_knows_are_no_errors(self, name: str) -> None:
        router = make_router(name)
        router.set_engines(ENGINES)
        router.drop_engine("never there")
        router.release("never seen")
        assert router.answered("never seen", "never there") is None
        router.see(EngineSnapshot("never there", 1, 0.0))
        assert router.rehome(0.0) == []

    def test_ids_that_are_not_valid_unicode_are_routed(self, name: str) -> None:
        router = make_router(name)
        router.set_engines(ENGINES)
        assert router.route(RoutedCall("\ud800", "\ud801", 1, anchor="\ud802", tagged=False), {}, 0.0) is not None


def test_an_unknown_router_or_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="session-hash"):
        make_router("round-robin")
    with pytest.raises(ValueError, match="margins"):
        make_router("workflow", margins=1)
    with pytest.raises(ValueError, match=r"workflow_bound is 0\.5"):
        make_router("workflow", workflow_bound=0.5)
    with pytest.raises(ValueError, match="host_token_s"):
        make_router("workflow", prefill_token_s=1e-4, host_token_s=1e-3)
