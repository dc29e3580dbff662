"""What every limit promises, whatever it is clever about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_actor.admission import Signals, controller_names, make_controller

IDLE = Signals(
    at=0.0,
    admitted=0,
    held=0,
    running_calls=0,
    waiting_calls=0,
    prefill_s=0.0,
    busy_s=0.0,
    computed=0,
    regret=0,
    reused=0,
    output=0,
    working_set=0,
    growth=0,
    device_tokens=10_000,
    host_tokens=0,
)
# What looks at nothing does not look for pressure either.
FOUND = [name for name in controller_names() if name != "fixed"]

# A run of an engine is many draws.
fewer = settings(max_examples=40)

counts = st.integers(0, 10**12)
seconds = st.floats(0, 1e9, allow_nan=False)


def anything() -> st.SearchStrategy[Signals]:
    """Any figures at all, as an engine that was replaced or a clock that was set would show."""
    return st.builds(
        Signals, **{name: seconds if isinstance(of, float) else counts for name, of in asdict(IDLE).items()}
    )


@st.composite
def a_run(draw: st.DrawFn, regret: bool = True, held: bool = True) -> list[Signals]:
    """An engine that works: counts that grow, in steps of about a second."""
    now, run = IDLE, []
    for _ in range(draw(st.integers(1, 15))):
        passed = draw(st.floats(0.1, 3.0))
        busy = draw(st.floats(0.0, 1.0)) * passed
        computed = draw(st.integers(0, 5000))
        now = replace(
            now,
            at=now.at + passed,
            admitted=draw(st.integers(0, 200)),
            held=draw(st.integers(0, 100)) if held else 0,
            busy_s=now.busy_s + busy,
            prefill_s=now.prefill_s + draw(st.floats(0.0, 1.0)) * busy,
            computed=now.computed + computed,
            reused=now.reused + draw(st.integers(0, 5000)),
            regret=now.regret + (draw(st.integers(0, computed)) if regret else 0),
            output=now.output + draw(st.integers(0, 1000)),
            working_set=draw(st.integers(0, 100_000)),
        )
        run.append(now)
    return run


def limits(name: str, run: Sequence[Signals]) -> list[int | None]:
    controller = make_controller(name)
    return [controller.observe(signals) for signals in run]


@pytest.mark.parametrize("name", controller_names())
class TestEveryLimit:
    @given(st.lists(anything(), max_size=20))
    def test_takes_any_figures_and_is_none_or_at_least_one(self, name: str, run: list[Signals]) -> None:
        assert all(limit is None or (isinstance(limit, int) and limit >= 1) for limit in limits(name, run))

    @fewer
    @given(a_run())
    def test_is_none_or_at_least_one_while_an_engine_works(self, name: str, run: list[Signals]) -> None:
        assert all(limit is None or limit >= 1 for limit in limits(name, run))

    @fewer
    @given(a_run())
    def test_says_the_same_of_the_same(self, name: str, run: list[Signals]) -> None:
        assert limits(name, run) == limits(name, run)

    @fewer
    @given(a_run())
    def test_explains_itself_in_finite_figures(self, name: str, run: list[Signals]) -> None:
        controller = make_controller(name)
        for signals in run:
            controller.observe(signals)
            assert all(abs(figure) < 1e300 for figure in controller.explain().values())

    @fewer
    @given(a_run(), a_run())
    def test_goes_on_with_an_engine_that_was_replaced(
        self, name: str, run: list[Signals], other: list[Signals]
    ) -> None:
        later = [replace(signals, at=signals.at + run[-1].at) for signals in other]
        assert all(limit is None or limit >= 1 for limit in limits(name, [*run, *later]))


@pytest.mark.parametrize("name", FOUND)
class TestEveryLimitThatIsFound:
    @fewer
    @given(a_run(regret=False, held=False))
    def test_stays_none_without_pressure(self, name: str, run: list[Signals]) -> None:
        assert limits(name, run) == [None] * len(run)

    @fewer
    @given(a_run())
    def test_becomes_none_once_the_pressure_is_over(self, name: str, run: list[Signals]) -> None:
        calm = [replace(run[-1], at=run[-1].at + number, held=0) for number in range(1, 31)]
        assert limits(name, [*run, *calm])[-1] is None


class TestNames:
    def test_an_unknown_one_is_told_with_those_that_exist(self) -> None:
        with pytest.raises(ValueError, match=r"unknown admission 'none'; choose from .*balance"):
            make_controller("none")

    def test_an_unknown_parameter_is_told_with_those_that_exist(self) -> None:
        with pytest.raises(ValueError, match=r"'balance' has no parameter 'gain'; it has weight"):
            make_controller("balance", {"gain": 1})

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("fixed", {"workflows": 0}),
            ("balance", {"weight": 0}),
            ("miss-curve", {"steep": 0.9}),
            ("miss-curve", {"least": 0}),
            ("miss-curve", {"now": 1.1}),
            ("aimd", {"cut": 1.0}),
            ("working-set", {"share": 0}),
            ("pause", {"fill": -1}),
            ("gradient", {"step": 1}),
        ],
    )
    def test_a_value_without_sense_is_refused(self, name: str, parameters: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=next(iter(parameters))):
            make_controller(name, parameters)
