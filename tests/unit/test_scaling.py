"""The decision about the number of engines: up at once, down late, within bounds, and without flapping."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import ScalingConfig
from serving.scaling import Decision, EngineStats, Observation, Past, decide, needs

CONFIG = ScalingConfig(
    workflows=10, calls=8, pending_tokens=1000, active_share=0.5, spare=0.25, down_after_s=60, zero_after_s=100
)
IDLE = EngineStats(active_share=0.0)

loads = st.floats(0, 1e6)
engine_stats = st.builds(
    EngineStats,
    calls=loads,
    workflows=loads,
    next_minute=loads,
    call_s=st.floats(0, 1e3),
    pending_tokens=loads,
    active_share=st.none() | st.floats(0, 1),
)
observations = st.builds(
    lambda engines, silent, queued, target, least, more: Observation(
        engines, silent, queued, target, least, least + more
    ),
    st.lists(engine_stats, max_size=4),
    st.integers(0, 2),
    loads,
    st.integers(0, 12),
    st.integers(0, 5),
    st.integers(1, 10),
)
pasts = st.none() | st.builds(
    Past,
    since=st.floats(0, 500),
    busy=st.floats(0, 1000),
    peaks=st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 40)), max_size=4).map(
        lambda peaks: tuple(sorted(peaks, key=lambda peak: -peak[1]))
    ),
)
NOW = 1000.0


def seen(*engines: EngineStats, target: int = 1, least: int = 0, most: int = 8, **more: float) -> Observation:
    return Observation(
        engines, int(more.get("silent", 0)), more.get("queued", 0.0), target=target, least=least, most=most
    )


class Run:
    """Decisions one after the other, a second apart; what is wanted is there at once."""

    def __init__(self, target: int, config: ScalingConfig = CONFIG) -> None:
        self.target = target
        self.config = config
        self.now = 0.0
        self.past: Past | None = None

    def step(self, observed: Callable[[int], Observation]) -> Decision:
        decision, self.past = decide(observed(self.target), self.past, self.config, self.now)
        self.target = decision.target
        self.now += 1.0
        return decision

    def steps(self, count: int, observed: Callable[[int], Observation]) -> list[int]:
        return [self.step(observed).target for _ in range(count)]


def spread(workflows: float) -> Callable[[int], Observation]:
    """So many workflows over the engines that there are, with hardly a call."""

    def observed(target: int) -> Observation:
        engines = [EngineStats(calls=0.01, workflows=workflows / target)] * target
        return seen(*engines, target=target, queued=0.0 if target else workflows)

    return observed


class TestSignals:
    @pytest.mark.parametrize(
        ("engine", "queued", "signal", "engines"),
        [
            (EngineStats(workflows=25), 0, "workflows", 2.5),
            (EngineStats(calls=12), 8, "calls", 2.5),
            (EngineStats(next_minute=120, call_s=10), 0, "forecast", 2.5),
            (EngineStats(pending_tokens=2500), 0, "prefill", 2.5),
            (EngineStats(active_share=1.0), 0, "pool", 2.0),
        ],
    )
    def test_each_alone_brings_engines_up_within_one_decision(
        self, engine: EngineStats, queued: float, signal: str, engines: float
    ) -> None:
        decision, _ = decide(seen(engine, queued=queued), None, CONFIG, NOW)
        assert decision.asked[signal] == pytest.approx(engines)
        assert decision.target == (2 if signal == "pool" else 3)
        assert signal in decision.reason

    def test_the_same_load_asks_for_the_same_on_however_many_engines(self) -> None:
        one = needs(seen(EngineStats(8, 8, 60, 4, 800, 0.4)), CONFIG)
        four = needs(seen(*[EngineStats(2, 2, 15, 4, 200, 0.1)] * 4), CONFIG)
        assert one == pytest.approx(four)

    def test_stats_that_travel_as_numbers_come_back(self) -> None:
        for stats in (EngineStats(1, 2, 3, 4, 5, 0.5), EngineStats(1, 2, 3, 4, 5)):
            assert EngineStats.heard(stats.told() | {"somebody_else's": 1.0}) == stats
            assert all(type(value) is float for value in stats.told().values())


class TestBounds:
    @given(observations, pasts)
    def test_never_beyond(self, observation: Observation, past: Past | None) -> None:
        decision, _ = decide(observation, past, CONFIG, NOW)
        assert observation.least <= decision.target <= observation.most

    @given(observations, pasts, engine_stats)
    def test_more_load_never_means_fewer_engines(
        self, observation: Observation, past: Past | None, more: EngineStats
    ) -> None:
        loaded = dataclasses.replace(observation, engines=[*observation.engines, more])
        less, _ = decide(observation, past, CONFIG, NOW)
        assert decide(loaded, past, CONFIG, NOW)[0].target >= less.target

    @given(st.lists(observations, max_size=80))
    def test_the_memory_is_bounded_by_the_number_of_engines_asked_for(self, all_seen: Sequence[Observation]) -> None:
        past: Past | None = None
        for number, observation in enumerate(all_seen):
            _, past = decide(observation, past, CONFIG, float(number))
            counts = [count for _, count in past.peaks]
            assert counts == sorted(set(counts), reverse=True)


class TestDown:
    @given(st.floats(0.01, 200), st.integers(1, 8))
    def test_constant_load_brings_at_most_one_change_up_and_one_down(self, workflows: float, start: int) -> None:
        targets = [start, *Run(start).steps(200, spread(workflows))]
        changes = [after - before for before, after in itertools.pairwise(targets) if after != before]
        assert len([change for change in changes if change > 0]) <= 1
        assert len([change for change in changes if change < 0]) <= 1
        assert len(set(targets[-90:])) == 1

    def test_not_before_the_delay_and_then_to_what_was_needed_within_it(self) -> None:
        run = Run(1)
        assert run.steps(10, spread(60)) == [6] * 10
        assert run.steps(20, spread(28)) == [6] * 20  # with a quarter to spare: four engines
        assert run.steps(39, spread(5)) == [6] * 39
        assert run.steps(20, spread(5)) == [4] * 20
        assert run.steps(50, spread(5)) == [1] * 50

    def test_load_that_comes_back_within_the_delay_costs_nobody_an_engine(self) -> None:
        run = Run(1)
        run.step(spread(40))
        for _ in range(5):
            assert run.steps(50, spread(1)) == [4] * 50
            assert run.step(spread(40)).target == 4

    def test_a_load_at_the_edge_does_not_flap(self) -> None:
        run = Run(1)
        targets = [run.step(spread(workflows)).target for _ in range(200) for workflows in (20.0, 20.1)]
        assert set(targets[1:]) == {3}

    def test_an_engine_that_has_said_nothing_keeps_all(self) -> None:
        run = Run(3)
        assert run.steps(200, lambda target: seen(IDLE, IDLE, target=target, silent=1)) == [3] * 200
        assert run.steps(61, lambda target: seen(*[IDLE] * target, target=target))[-1] == 1


class TestZero:
    def test_the_last_engine_goes_when_nothing_was_to_do_for_long(self) -> None:
        run = Run(1)
        run.steps(10, lambda target: seen(EngineStats(calls=1), target=target))
        assert run.steps(99, lambda target: seen(IDLE, target=target)) == [1] * 99
        decision = run.step(lambda target: seen(IDLE, target=target))
        assert (decision.target, decision.reason) == (0, "no call for 100 s")
        assert run.steps(100, lambda target: seen(target=target)) == [0] * 100

    def test_a_call_that_waits_wakes_it(self) -> None:
        run = Run(0)
        run.steps(200, lambda target: seen(target=target))
        assert run.step(lambda target: seen(target=target, queued=0.1)).target == 1

    def test_workflows_that_pause_do_not_keep_the_last_engine(self) -> None:
        run = Run(1)
        pausing = EngineStats(workflows=3, next_minute=9, call_s=1, active_share=0.4)
        targets = run.steps(101, lambda target: seen(*[pausing] * target, target=target))
        assert targets == [1] * 100 + [0]

    def test_several_go_down_to_one_first(self) -> None:
        targets = Run(3).steps(120, lambda target: seen(*[IDLE] * target, target=target))
        assert targets == [3] * 60 + [1] * 40 + [0] * 20
