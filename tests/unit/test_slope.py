"""How one figure reacts to another, learned as it goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission.slope import Slope

figures = st.floats(-50, 50)


class TestSlope:
    def test_without_a_move_it_is_what_was_expected(self) -> None:
        slope = Slope()
        assert slope.value(3.0, 0.1) == pytest.approx(3.0)
        for _ in range(20):
            slope.take(2.0, 5.0, 1.0, 100.0)
        assert slope.value(3.0, 0.1) == pytest.approx(3.0)

    @given(st.lists(figures, min_size=5, max_size=40), st.floats(-5, 5))
    def test_a_straight_line_is_found(self, xs: list[float], steep: float) -> None:
        slope = Slope()
        for x in xs:
            slope.take(x, 7.0 + steep * x, 1.0, 1000.0)
        assert slope.variance >= 0.0
        between = sorted((steep, 2.0))
        assert between[0] - 1e-6 <= slope.value(2.0, 1e-3) <= between[1] + 1e-6
        if slope.variance > 1.0:
            assert slope.value(2.0, 1e-6) == pytest.approx(steep, abs=1e-3)

    def test_what_was_long_ago_is_forgotten(self) -> None:
        slope = Slope()
        for step in range(400):
            steep = 1.0 if step < 200 else 4.0
            slope.take(step % 2, steep * (step % 2), 1.0, 10.0)
        assert slope.value(0.0, 1e-6) == pytest.approx(4.0, abs=0.01)
