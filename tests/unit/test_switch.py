"""The driver switches policies while a coordinator may send plans of its own."""

from __future__ import annotations

import pytest

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark.driver.engines import Target


class Contended(Target):
    """An engine to which somebody else sends a plan before each of ours, so many times."""

    def contend(self, applied: int, times: int, reason: str = "") -> None:
        self.applied, self.times, self.reason = applied, times, reason
        self.sent: list[int] = []

    async def send(self, engine: str, plan: EnginePlan) -> EngineReport:
        self.sent.append(plan.plan)
        if self.times:
            self.times -= 1
            self.applied += 7
        accepted = plan.plan > self.applied and not self.reason
        if accepted:
            self.applied = plan.plan
        return EngineReport(plan.plan, accepted, self.reason, [], {}, {}, {}, [], self.applied)


def plan() -> EnginePlan:
    return EnginePlan(100, 60.0, [], {}, [], "lru", {})


class TestSwitch:
    @pytest.mark.parametrize(("applied", "times"), [(0, 0), (5000, 0), (5000, 3)])
    async def test_it_is_applied_whoever_was_faster(self, applied: int, times: int) -> None:
        target = Contended("t", "url", "model", None)
        target.contend(applied, times)
        report = await target.switch("e", plan())
        assert report.accepted
        assert target.sent == sorted(set(target.sent))

    async def test_a_plan_that_is_wrong_is_sent_once(self) -> None:
        target = Contended("t", "url", "model", None)
        target.contend(0, 0, reason="there is no such policy")
        assert not (await target.switch("e", plan())).accepted
        assert target.sent == [100]
