"""An engine finds out by itself which workflows do not call any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_actor.messages import RequestIdentity
from serving.engine_workflows import EngineWorkflows

IDLE_S = 10.0


def call(workflow: str = "w", final: bool = False) -> RequestIdentity:
    return RequestIdentity(workflow, "planner", None, final, None, None, "header")


class TestIdle:
    def test_one_without_a_call_for_so_long_is_told_once(self) -> None:
        workflows = EngineWorkflows(IDLE_S, 100)
        workflows.began(call(), 0.0)
        workflows.over(call(), 5.0)
        assert workflows.take_idle(5.0 + 0.9 * IDLE_S) == []
        assert workflows.take_idle(5.0 + 1.1 * IDLE_S) == ["w"]
        assert workflows.take_idle(5.0 + 9 * IDLE_S) == []

    def test_one_whose_call_runs_is_not_idle(self) -> None:
        workflows = EngineWorkflows(IDLE_S, 100)
        workflows.began(call(), 0.0)
        assert workflows.take_idle(9 * IDLE_S) == []

    def test_what_its_client_has_ended_is_not_told_again(self) -> None:
        workflows = EngineWorkflows(IDLE_S, 100)
        for workflow in ("deleted", "final"):
            workflows.began(call(workflow), 0.0)
            workflows.over(call(workflow, final=workflow == "final"), 1.0)
        workflows.end("deleted", 2.0)
        workflows.end("never seen", 2.0)
        assert workflows.take_idle(9 * IDLE_S) == []

    def test_beyond_the_limit_it_is_the_one_without_a_call_for_longest_unless_that_has_called_again(self) -> None:
        workflows = EngineWorkflows(IDLE_S, 2)
        for at, workflow in enumerate(("a", "b", "c", "d", "a")):
            workflows.began(call(workflow), float(at))
            workflows.over(call(workflow), float(at))
        assert set(workflows.take_idle(5.0)) == {"b", "c"}

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2 * IDLE_S)), max_size=20))
    def test_everybody_is_told_once_and_nobody_before_its_time(self, calls: list[tuple[str, float]]) -> None:
        workflows, now = EngineWorkflows(IDLE_S, 100), 0.0
        called: dict[str, float] = {}
        for workflow, pause in calls:
            now += pause
            for idle in workflows.take_idle(now):
                assert now - called.pop(idle) >= IDLE_S
            workflows.began(call(workflow), now)
            workflows.over(call(workflow), now)
            called[workflow] = now
        assert sorted(workflows.take_idle(now + 1.1 * IDLE_S)) == sorted(called)
