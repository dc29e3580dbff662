"""What stands between our hooks and SGLang's scheduler: it never raises, and never goes silent."""

from __future__ import annotations

import logging

import pytest

from serving.sglang_plugin import guard
from serving.sglang_plugin.guard import LOG_PERIOD_S, guarded


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(guard, "time", clock)
    return clock


def test_arguments_go_through() -> None:
    seen = []
    guarded(lambda *args, **kwargs: seen.append((args, kwargs)))(1, two=2)
    assert seen == [((1,), {"two": 2})]


def test_a_hook_that_keeps_failing_is_logged_once_a_period_with_its_count(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    @guarded
    def hook(reason: str) -> None:
        raise RuntimeError(reason)

    with caplog.at_level(logging.ERROR, logger="forecache"):
        hook("first")
        hook("second")
        clock.now += LOG_PERIOD_S - 1
        hook("third")
        assert ["(1 so far)" in record.getMessage() for record in caplog.records] == [True]
        clock.now += 1
        hook("another")
    assert len(caplog.records) == 2
    last = caplog.records[-1]
    assert "hook failed (4 so far)" in last.getMessage()
    assert last.exc_info is not None
    assert str(last.exc_info[1]) == "another"


def test_each_hook_has_a_period_of_its_own(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError

    with caplog.at_level(logging.ERROR, logger="forecache"):
        guarded(fail)()
        guarded(fail)()
    assert len(caplog.records) == 2
