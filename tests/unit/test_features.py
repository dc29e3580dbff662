"""What the model is told of paths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictor_actor.base import Prefix
from predictor_actor.features import READ, WINDOW, PathArrays, path_arrays

paths = st.lists(st.integers(-1, 5), max_size=64)


def read(*given_paths: list[int]) -> PathArrays:
    """Of paths of agents' numbers, whose calls grow by ten tokens and begin half a second after one another's end."""
    prefixes = [Prefix([str(number) for number in path], numbers(len(path)), len(path) + 7) for path in given_paths]
    latest = [number for path in given_paths for number in path[-READ:]]
    return path_arrays(prefixes, np.array(latest, np.int64), unknown=7)


def numbers(count: int) -> np.ndarray:
    place = np.arange(count, dtype=np.float32)
    return np.stack([10 * place, place + 1, 1.5 * place, 1.5 * place + 1], axis=1)


@given(st.lists(paths, max_size=4))
def test_a_path_is_read_as_if_it_were_alone(several: list[list[int]]) -> None:
    together = read(*several)
    for row, path in enumerate(several):
        alone = read(path)
        for field in ("nodes", "present", "calls", "workflow"):
            assert np.array_equal(getattr(together, field)[row], getattr(alone, field)[0])


@given(paths)
def test_the_latest_calls_stand_at_the_end_of_the_window(path: list[int]) -> None:
    arrays = read(path)
    count = min(len(path), WINDOW)
    assert arrays.present[0].sum() == count
    assert arrays.nodes[0, WINDOW - count :].tolist() == [7 if number < 0 else number for number in path[-WINDOW:]]
    assert not arrays.nodes[0, : WINDOW - count].any()
    assert not arrays.calls[0, : WINDOW - count].any()


def test_the_first_call_of_a_full_window_has_the_pause_before_it() -> None:
    full, cut = read([1] * 30), read([1] * WINDOW)
    assert full.calls[0, 0, 4] == 1
    assert full.calls[0, 0, 2] == full.calls[0, 1, 2] > 0
    assert cut.calls[0, 0, 4] == 0
