"""The predictor as a deployment of a real Ray Serve, without engines: asked, mistreated, taught, restarted, stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray import serve
from running_server import eventually, is_alive

from predictor_actor.base import Call, Prefix, WorkflowTrace, prefixes_of
from predictor_actor.checkpoint import save_checkpoint
from predictor_actor.model import ModelConfig
from predictor_actor.requests import Request, RequestError, decode_answer, encode_request
from predictor_actor.train import TrainConfig, train
from serving.app import predictor_deployment
from serving.config import AppConfig

NOTHING = np.zeros((0, 4), np.float32)


def workflows(count: int, first: int = 0) -> list[WorkflowTrace]:
    """Two kinds in turn: who begins decides how often coder and tester are called."""
    found = []
    for number in range(first, first + count):
        start, rounds = (("planner-long", 3), ("planner", 2))[number % 2]
        calls = [Call(agent, 100, 50) for agent in [start, *["coder", "tester"] * rounds, "reviewer"]]
        found.append(WorkflowTrace(f"w{number}", tuple(calls)))
    return found


class Predictor:
    """One deployment, as the coordinator asks it."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        predictor = {"enabled": True, "traces_dir": str(folder), **fields}
        application = predictor_deployment(AppConfig.model_validate({"predictor": predictor}))
        assert application is not None
        self.handle: Any = serve.run(application, name="predictor", route_prefix=None)

    def ask(
        self,
        begun: Sequence[Prefix] = (),
        ended: Sequence[WorkflowTrace] = (),
        asked: Sequence[Prefix] = (),
    ) -> Any:
        return decode_answer(self.handle.forecast.remote(encode_request(Request(begun, ended, {}, asked))).result())

    def live_through(self, traces: Sequence[WorkflowTrace]) -> None:
        for trace in traces:
            self.ask(prefixes_of(trace))
            self.ask(ended=[trace])

    def status(self) -> dict[str, Any]:
        said: dict[str, Any] = self.handle.status.remote().result()
        return said


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"location": "NoServer"})
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def _no_application() -> Iterator[None]:
    yield
    serve.delete("predictor")


def trainings() -> list[psutil.Process]:
    """Those of this test's Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "predictor_actor.retrain" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.usefixtures("_no_application")
class TestRequests:
    def test_whatever_a_path_is_like_it_is_forecast(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path, learn=False)
        long = Prefix.of([Call("a"), Call("b")] * 5000)
        answer = predictor.ask([Prefix([], NOTHING, 0), long, Prefix.of([Call("never seen")])])
        assert len(answer.forecasts) == 3
        assert set(answer.forecasts.agents) == {"b", "never seen"}
        assert answer.forecasts.model == "markov-5"
        assert answer.made_at > 1e9
        assert 0 <= answer.seconds < 60

    def test_a_malformed_request_fails_alone(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path, learn=False, batch_wait_s=0.2)
        good = encode_request(Request([Prefix.of([Call("a")])], [], {}))
        replies = [predictor.handle.forecast.remote(data) for data in (good, b"noise", good, good[:-1])]
        for place in (0, 2):
            assert len(decode_answer(replies[place].result()).forecasts) == 1
        for place in (1, 3):
            with pytest.raises(RequestError):
                replies[place].result()

    def test_each_request_of_a_batch_gets_its_own_rows(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path, learn=False, batch_wait_s=0.2)
        predictor.live_through([WorkflowTrace("w", (Call("a"), Call("b"), Call("c")))] * 3)
        data = [encode_request(Request([Prefix.of([Call(name)], name)], [], {})) for name in "ab"]
        replies = [predictor.handle.forecast.remote(each) for each in data]
        for reply, follower in zip(replies, "bc", strict=True):
            forecasts = decode_answer(reply.result()).forecasts
            assert forecasts.agents[int(forecasts.steps[0, 0, :-1].argmax())] == follower

    def test_what_is_only_asked_for_is_forecast_after_the_rest_and_not_observed(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path, learn=False)
        predictor.live_through([WorkflowTrace("w", (Call("a"), Call("b"), Call("c")))] * 3)
        before = predictor.status()["counts"]["observed"]
        forecasts = predictor.ask([Prefix.of([Call("a")], "v")], asked=[Prefix.of([Call("b")], "u")]).forecasts
        likeliest = [forecasts.agents[int(row[:-1].argmax())] for row in forecasts.steps[:, 0]]
        assert likeliest == ["b", "c"]
        assert predictor.status()["counts"]["observed"] == before + 1


@pytest.mark.usefixtures("_no_application")
class TestCheckpoints:
    def test_one_that_does_not_fit_is_refused_and_the_old_one_stays(self, tmp_path: Path) -> None:
        model = train(workflows(6), TrainConfig(ModelConfig(8, 8), epochs=1)).predictor
        save_checkpoint(model, tmp_path / "good")
        save_checkpoint(model, tmp_path / "bad")
        said = json.loads((tmp_path / "bad" / "model.json").read_text())
        said["config"]["width"] = 16
        (tmp_path / "bad" / "model.json").write_text(json.dumps(said))
        predictor = Predictor(tmp_path / "kept", learn=False, checkpoint=str(tmp_path / "good"))
        name = f"graphsage {model.version}"
        assert predictor.status()["model"] == name
        reply = predictor.handle.load.remote(str(tmp_path / "bad")).result()
        assert not reply["loaded"]
        assert "size mismatch" in reply["reason"]
        assert reply["model"] == predictor.ask([Prefix.of([Call("planner")])]).forecasts.model == name
        assert "size mismatch" in predictor.status()["refused"]
        assert predictor.handle.load.remote(str(tmp_path / "good")).result()["loaded"]

    def test_one_that_cannot_be_read_at_the_start_is_told_and_the_chain_serves(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path, learn=False, checkpoint=str(tmp_path / "nowhere"))
        assert predictor.status()["model"] == "markov-5"
        assert "forecache train" in predictor.status()["refused"]


class TestLearning:
    def test_a_model_is_trained_meanwhile_takes_over_survives_a_restart_and_nothing_is_left(
        self, tmp_path: Path
    ) -> None:
        predictor = Predictor(tmp_path)
        predictor.live_through(workflows(44))
        training = eventually(trainings, "a training has begun", 30)
        assert len(predictor.ask([Prefix.of([Call("planner")])]).forecasts) == 1
        eventually(lambda: predictor.status()["counts"].get("trained"), "it has ended", 240)
        assert not any(is_alive(process) for process in training)
        assert predictor.status()["model"] == "markov-5"
        predictor.live_through(workflows(28, first=44))
        eventually(lambda: predictor.status()["model"].startswith("graphsage"), "the newcomer has taken over", 60)
        status = predictor.status()
        assert "better than markov-5" in status["why"]
        assert (tmp_path / "checkpoint" / "model.json").exists()
        serve.delete("predictor")
        eventually(lambda: not trainings(), "no training outlives its replica", 30)

        again = Predictor(tmp_path, learn=False)
        assert again.status()["model"] == status["model"]
        assert again.status()["traces"] == 72
        forecasts = again.ask([Prefix.of([Call("planner")])]).forecasts
        assert forecasts.agents[int(forecasts.steps[0, 0].argmax())] == "coder"
        serve.delete("predictor")

    def test_a_training_ends_with_its_replica(self, tmp_path: Path) -> None:
        predictor = Predictor(tmp_path)
        predictor.live_through(workflows(44))
        training = eventually(trainings, "a training has begun", 30)
        serve.delete("predictor")
        eventually(lambda: not any(is_alive(process) for process in training), "it is gone", 30)
