"""The driver switches policies while a coordinator may send plans of its own, and routers, which hear of engines."""

from __future__ import annotations

import json

import httpx
import pytest

from cache_actor.messages import EnginePlan, EngineReport
from serving.benchmark.driver import engines
from serving.benchmark.driver.engines import EnginesError, Target


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


class TestRouter:
    def ingress(self, *ages: float | None) -> httpx.AsyncClient:
        """An ingress whose engine was heard of so long ago, from one question to the next."""
        self.asked: list[tuple[str, bytes]] = []

        def answer(request: httpx.Request) -> httpx.Response:
            age = ages[min(len(self.asked), len(ages) - 1)]
            self.asked.append((request.method, request.content))
            if b"nobody" in request.content:
                return httpx.Response(400, json={"error": {"message": "name cannot be 'nobody'"}})
            return httpx.Response(200, json={"engines": [{"id": "e", "snapshot_age_s": age}]})

        return httpx.AsyncClient(base_url="http://here/v1/", transport=httpx.MockTransport(answer))

    async def test_it_decides_only_when_it_has_heard_of_the_emptied_engines(self) -> None:
        http = self.ingress(None, 500.0, 0.0)
        await Target("t", "http://here/v1/", "model", None).route_by(http, "workflow", {"margin_s": 1})
        assert [method for method, _ in self.asked] == ["POST", "GET", "GET"]
        assert json.loads(self.asked[0][1]) == {"name": "workflow", "parameters": {"margin_s": 1}}

    async def test_one_that_is_refused_is_an_error_with_the_reason(self) -> None:
        with pytest.raises(EnginesError, match="name cannot be 'nobody'"):
            await Target("t", "http://here/v1/", "model", None).route_by(self.ingress(0.0), "nobody", {})

    async def test_without_a_coordinator_it_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engines, "HEARD_LIMIT_S", 0.0)
        with pytest.raises(EnginesError, match="does a coordinator run"):
            await Target("t", "http://here/v1/", "model", None).route_by(self.ingress(None), "workflow", {})


class TestWithoutCoordinator:
    def ingress(self, mode: str | None) -> httpx.AsyncClient:
        """An ingress with a coordinator in a mode, or with none."""
        self.modes = [mode]

        def answer(request: httpx.Request) -> httpx.Response:
            if mode is None:
                return httpx.Response(404, json={"error": {"message": "there is no coordinator"}})
            if request.method == "POST":
                self.modes.append(json.loads(request.content)["mode"])
            return httpx.Response(200, json={"mode": self.modes[-1]})

        return httpx.AsyncClient(base_url="http://here/v1/", transport=httpx.MockTransport(answer))

    @pytest.mark.parametrize("mode", ["on", "shadow", "off"])
    async def test_it_is_off_meanwhile_and_then_as_it_was_whatever_happens(self, mode: str) -> None:
        target, http = Target("t", "http://here/v1/", "model", None), self.ingress(mode)

        async def fail() -> None:
            async with target.without_coordinator(http):
                assert self.modes[-1] == "off"
                raise RuntimeError("in between")

        with pytest.raises(RuntimeError, match="in between"):
            await fail()
        assert self.modes[-1] == mode

    async def test_where_there_is_none_nothing_is_switched(self) -> None:
        target, http = Target("t", "http://here/v1/", "model", None), self.ingress(None)
        async with target.without_coordinator(http):
            pass
        assert self.modes == [None]
