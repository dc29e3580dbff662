"""The coordinator's shell, with predictors that are slow, broken or gone. No Ray runtime; a handle is what answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from coordinator_reports import MadeUpEngine, began, cache_report, certain, over

from cache_actor.codec import MessageError
from cache_actor.coordinator import CacheCoordinator
from cache_actor.coordinator_config import CoordinatorConfig
from cache_actor.messages import Ask, SyncAnswer, SyncReport, decode, encode
from predictor_actor.requests import MAX_BYTES, Answer, Request, decode_request, encode_answer
from serving.link import Address, LinkServer

AGENTS = ["coder", "tester"]
TOO_FEW = encode_answer(Answer(certain([], AGENTS, "coder"), 0.0, 0.0))


class Predictor:
    """Stands for the predictor's deployment and the handle of it."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.delay_s = 0.0
        self.broken = False
        self.wrong: bytes | None = None
        self.server = LinkServer(self._forecast, "127.0.0.1", MAX_BYTES)
        self.address = Method(self._address)
        self.status = Method(self._status)

    async def _address(self) -> Address:
        return self.server.address

    async def _forecast(self, data: bytes) -> bytes:
        request = decode_request(data)
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        if self.broken:
            raise RuntimeError("the replica is gone")
        prefixes = [*request.begun, *request.asked]
        return self.wrong or encode_answer(Answer(certain(prefixes, AGENTS, "tester"), time.time(), 0.001))

    async def _status(self) -> dict[str, Any]:
        return {"serving": "certain 1"}


class Method:
    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class Desk:
    def __init__(self, predictor: Predictor | None, **config: Any) -> None:
        self.predictor = predictor
        self.engine = MadeUpEngine()
        self.coordinator = CacheCoordinator(CoordinatorConfig(**config), predictor)

    async def sync(self, report: SyncReport) -> SyncAnswer:
        answer = decode(await self.coordinator.take(encode(report)))
        assert isinstance(answer, SyncAnswer)
        return answer

    def close(self) -> None:
        for task in self.coordinator._tasks:
            task.cancel()
        self.coordinator._link.close()
        if self.predictor is not None:
            self.predictor.server.close()


Make = Callable[..., Desk]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    desks: list[Desk] = []

    def one(predictor: Predictor | None, **config: Any) -> Desk:
        desks.append(Desk(predictor, **config))
        return desks[-1]

    yield one
    for desk in desks:
        desk.close()


class TestForecasts:
    async def test_what_just_moved_is_forecast_in_the_same_answer(self, make: Make) -> None:
        desk = make(Predictor(), forecast_wait_s=5)
        answer = await desk.sync(desk.engine.report(began("w")))
        assert answer.plan is not None
        assert set(answer.plan.tables["w"] or ()) == {"tester"}

    async def test_ended_workflows_are_learned_from(self, make: Make) -> None:
        predictor = Predictor()
        desk = make(predictor, forecast_wait_s=5)
        await desk.sync(desk.engine.report(began("w"), over("w")))
        await desk.sync(desk.engine.report(ended={"w": "final"}))
        assert [trace.workflow for request in predictor.requests for trace in request.ended] == ["w"]

    async def test_a_slow_predictor_delays_no_plan_beyond_the_limit_and_its_forecast_comes_later(
        self, make: Make
    ) -> None:
        predictor = Predictor()
        predictor.delay_s = 0.5
        desk = make(predictor, forecast_wait_s=0.02)
        begin = time.monotonic()
        answer = await desk.sync(desk.engine.report(began("w")))
        assert time.monotonic() - begin < 0.4
        assert answer.plan is None or not answer.plan.tables
        await asyncio.sleep(0.6)
        later = await desk.sync(desk.engine.report())
        assert later.plan is not None
        assert "w" in later.plan.tables

    async def test_engines_that_report_at_once_share_a_request(self, make: Make) -> None:
        predictor = Predictor()
        predictor.delay_s = 0.05
        desk = make(predictor, forecast_wait_s=5)
        engines = [MadeUpEngine(f"e{number}") for number in range(20)]
        answers = await asyncio.gather(*[desk.sync(one.report(began(f"w-{one.id}"))) for one in engines])
        assert all(answer.plan is not None for answer in answers)
        assert len(predictor.requests) <= 3

    @pytest.mark.parametrize("wrong", [None, b"\x90", b"\xc1", TOO_FEW])
    async def test_a_broken_predictor_is_left_alone_for_a_while_and_asked_again(
        self, make: Make, wrong: bytes | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cache_actor.coordinator.PREDICTOR_PAUSE_S", 0.3)
        predictor = Predictor()
        predictor.broken, predictor.wrong = wrong is None, wrong
        desk = make(predictor, forecast_wait_s=1)
        answer = await desk.sync(desk.engine.report(began("w")))
        assert answer.plan is None or not answer.plan.tables
        assert (await desk.coordinator.status())["counts"]["forecasts_failed"] == 1
        begin = time.monotonic()
        await desk.sync(desk.engine.report(began("v")))
        assert time.monotonic() - begin < 0.25  # nobody waits for a predictor that is known to be broken
        predictor.broken, predictor.wrong = False, None
        await asyncio.sleep(0.5)
        recovered = await desk.sync(desk.engine.report(began("u")))
        assert recovered.plan is not None
        assert "u" in recovered.plan.tables

    async def test_what_was_asked_while_the_predictor_was_away_is_forecast_when_it_is_back(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cache_actor.coordinator.PREDICTOR_PAUSE_S", 0.1)
        predictor = Predictor()
        predictor.broken = True
        desk = make(predictor, forecast_wait_s=1)
        await desk.sync(desk.engine.report(began("w")))
        predictor.broken = False
        await asyncio.sleep(0.4)
        answer = await desk.sync(desk.engine.report())
        assert answer.plan is not None
        assert "w" in answer.plan.tables

    async def test_without_a_predictor_plans_say_what_has_ended(self, make: Make) -> None:
        desk = make(None)
        other = MadeUpEngine("other")
        await desk.sync(desk.engine.report(began("w")))
        await desk.sync(other.report(began("w")))
        await desk.sync(other.report(ended={"w": "final"}))
        answer = await desk.sync(desk.engine.report())
        assert answer.plan is not None
        assert answer.plan.ends == ["w"]
        assert (await desk.coordinator.status())["predictor"] is None


class TestProtocol:
    async def test_an_engine_that_is_not_known_is_asked_for_all(self, make: Make) -> None:
        desk = make(None)
        assert (await desk.sync(desk.engine.report())).tell_all
        assert not (await desk.sync(desk.engine.report())).tell_all
        next(desk.engine.numbers)
        assert (await desk.sync(desk.engine.report())).tell_all

    @pytest.mark.parametrize("data", [b"", b"\x90", encode(Ask(1, "dump"))])
    async def test_what_is_no_report_is_refused(self, make: Make, data: bytes) -> None:
        with pytest.raises(MessageError):
            await make(None).coordinator.take(data)

    async def test_the_epoch_of_the_engine_is_answered(self, make: Make) -> None:
        desk = make(None)
        desk.engine.epoch = 77
        assert (await desk.sync(desk.engine.report())).epoch == 77

    async def test_plans_go_on_from_those_that_somebody_else_had_applied(self, make: Make) -> None:
        desk = make(Predictor(), forecast_wait_s=5)
        refused = cache_report(plan=1, accepted=False, applied=10**12)
        await desk.sync(desk.engine.report(began("w")))
        answer = await desk.sync(desk.engine.report(cache=[refused], applied=10**12))
        assert answer.plan is not None
        assert answer.plan.plan == 10**12 + 1
        assert "w" in answer.plan.tables

    async def test_it_is_switched_while_it_runs(self, make: Make) -> None:
        desk = make(Predictor(), forecast_wait_s=5)
        await desk.sync(desk.engine.report(began("w")))
        assert await desk.coordinator.switch("off") == "off"
        answer = await desk.sync(desk.engine.report())
        assert answer.plan is not None
        assert answer.plan.tables == {"w": None}
        with pytest.raises(ValueError, match="'faster'; choose from on, shadow, off"):
            await desk.coordinator.switch("faster")

    async def test_a_workflow_is_explained(self, make: Make) -> None:
        desk = make(Predictor(), forecast_wait_s=5)
        await desk.sync(desk.engine.report(began("w"), over("w")))
        told = await desk.coordinator.workflow("w")
        assert told is not None
        assert told["living"]
        assert told["forecast"]["next"] == {"tester": 1.0}
        assert [decision["what"] for decision in told["decisions"]] == ["call", "over", "table"]
        assert await desk.coordinator.workflow("v") is None
        assert [one["id"] for one in await desk.coordinator.workflows(5)] == ["w"]


class TestConfig:
    def test_forecasts_must_outlive_two_reports(self) -> None:
        with pytest.raises(ValueError, match="two heartbeats"):
            CoordinatorConfig(heartbeat_s=2, plan_ttl_s=3)

    def test_an_unknown_runtime_policy_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'speed'"):
            CoordinatorConfig(runtime_policies=("speed",))
