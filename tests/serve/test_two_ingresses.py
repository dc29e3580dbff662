"""One real engine behind two ingresses: a workflow's calls meet one of them, and go on when that is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from running_server import ENGINE, RANDOM_MODEL, Server, eventually

IDLE_S = 6


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {
        "model": RANDOM_MODEL,
        "engine": ENGINE,
        "deployment": {"ingress_replicas": 2, "num_cpus": 0.5},
        "identity": {"idle_timeout_s": IDLE_S},
        "cache": {"learned_dir": ""},
        "predictor": {"enabled": False},
    }
    running = Server(tmp_path_factory.mktemp("ingresses"), args)
    try:
        running.wait(engines=1)
        eventually(lambda: len(keys_by_ingress(running)) == 2, "two ingresses", 60)
        yield running
    finally:
        running.close()


def keys_by_ingress(endpoint: Server) -> dict[str, str]:
    """For each ingress an API key with which clients that name no workflow get there."""
    found = {}
    for number in range(16):
        key = f"key-{number}"
        reply = endpoint.http.get("/v1/workflows", headers={"x-api-key": key})
        if reply.status_code == 200:
            found[reply.json()["ingress"]] = key
    return found


def owners(endpoint: Server) -> set[str]:
    """The workflows to which anything in the engine's cache belongs."""
    (engine,) = endpoint.engines()
    nodes = endpoint.http.get(f"/v1/engines/{engine['id']}/cache").json()["nodes"]
    return {owner for node in nodes for owner in node["owners"]}


def call(endpoint: Server, workflow: str) -> str:
    """The ingress that a call met, which was answered."""
    reply = endpoint.chat(f"A text of workflow {workflow} and of no other", {"x-workflow-id": workflow})
    assert reply.status_code == 200, reply.text
    return reply.headers["x-ingress-id"]


def kill_an_ingress(endpoint: Server) -> None:
    """The process of one of them, so that calls come before Ray knows."""
    name = "ServeReplica:forecache:Ingress"
    next(process for process in endpoint.processes() if name in " ".join(process.cmdline())).kill()


def test_all_calls_of_a_workflow_meet_one_ingress_which_knows_the_whole_of_it(endpoint: Server) -> None:
    names = [f"w-{number}" for number in range(8)]
    met = {name: {call(endpoint, name) for _ in range(3)} for name in names}
    assert all(len(ingresses) == 1 for ingresses in met.values())
    assert set.union(*met.values()) == set(keys_by_ingress(endpoint))
    for name in names:
        known = endpoint.http.get(f"/v1/workflows/{name}").json()
        assert (known["calls"], {known["ingress"]}) == (3, met[name])
        assert endpoint.http.delete(f"/v1/workflows/{name}").json()["state"] == "ended"
    eventually(lambda: not owners(endpoint) & set(names), "the engine has heard of every end", 10)


def test_untagged_calls_of_one_client_go_on_the_conversation_that_its_ingress_knows(endpoint: Server) -> None:
    for ingress, key in keys_by_ingress(endpoint).items():
        turns: list[dict[str, Any]] = [{"role": "user", "content": f"A conversation of the client with {key}"}]
        first = endpoint.chat(headers={"x-api-key": key}, messages=turns)
        turns += [first.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second = endpoint.chat(headers={"x-api-key": key}, messages=turns)
        assert first.headers["x-ingress-id"] == second.headers["x-ingress-id"] == ingress
        assert first.headers["x-workflow-id"] == second.headers["x-workflow-id"]


def test_a_workflow_that_one_ingress_takes_for_idle_lives_while_it_calls_by_another(endpoint: Server) -> None:
    (one, key), (other, other_key) = keys_by_ingress(endpoint).items()
    asked = {"metadata": {"workflow_id": "in-two"}}
    assert endpoint.chat("first", {"x-api-key": key}, **asked).headers["x-ingress-id"] == one

    def state() -> str:
        listed = endpoint.http.get("/v1/workflows", headers={"x-api-key": key}).json()["data"]
        return str(next(workflow["state"] for workflow in listed if workflow["id"] == "in-two"))

    def is_over_while_it_calls_by_the_other() -> bool:
        assert endpoint.chat("go on", {"x-api-key": other_key}, **asked).headers["x-ingress-id"] == other
        return state() == "ended"

    eventually(is_over_while_it_calls_by_the_other, "one ingress takes it for idle", 5 * IDLE_S, every_s=0.5)
    for _ in range(4):  # longer than an end is on its way
        time.sleep(0.5)
        assert is_over_while_it_calls_by_the_other()
    decisions = endpoint.http.get("/v1/coordinator/workflows/in-two").json()["decisions"]
    assert "end" not in {decision["what"] for decision in decisions}
    eventually(lambda: "in-two" not in owners(endpoint), "the engine takes it for idle", 5 * IDLE_S)


def test_a_workflow_can_be_ended_at_an_ingress_that_does_not_know_it(endpoint: Server) -> None:
    key = keys_by_ingress(endpoint).popitem()[1]
    names = (f"elsewhere-{number}" for number in range(32))

    def is_elsewhere(name: str) -> bool:
        endpoint.chat(f"A text of {name}", {"x-api-key": key}, metadata={"workflow_id": name})
        return endpoint.http.get(f"/v1/workflows/{name}").status_code == 404

    name = next(filter(is_elsewhere, names))
    assert name in owners(endpoint)
    known = f"/v1/coordinator/workflows/{name}"
    eventually(lambda: endpoint.http.get(known).status_code == 200, "the coordinator knows of it", 5, every_s=0.05)
    ended = endpoint.http.delete(f"/v1/workflows/{name}").json()
    assert (ended["state"], ended["end_reason"]) == ("ended", "requested")
    eventually(lambda: name not in owners(endpoint), "the engine has heard of the end", 5)
    assert endpoint.http.delete("/v1/workflows/nobodys").status_code == 404


def test_admission_is_switched_at_both(endpoint: Server) -> None:
    def both_are(mode: str | int) -> bool:
        keys = keys_by_ingress(endpoint).values()
        status = [endpoint.http.get("/v1/admission", headers={"x-api-key": key}).json() for key in keys]
        return [one["mode"] for one in status] == [mode, mode]

    for mode in (7, "on"):
        endpoint.http.post("/v1/admission", json={"mode": mode})
        eventually(partial(both_are, mode), f"both are switched to {mode}", 10)


def test_when_an_ingress_is_killed_its_workflows_go_on_at_the_other_and_none_lives_for_ever(endpoint: Server) -> None:
    names = [f"k-{number}" for number in range(8)]
    before = {name: call(endpoint, name) for name in names}
    kill_an_ingress(endpoint)
    after = {name: call(endpoint, name) for name in names}
    (victim,) = set(before.values()) - set(after.values())
    assert all(after[name] == before[name] for name in names if before[name] != victim)
    moved = [name for name in names if before[name] == victim]
    assert endpoint.http.get(f"/v1/workflows/{moved[0]}").json()["calls"] == 1
    assert endpoint.http.delete(f"/v1/workflows/{moved[0]}").json()["state"] == "ended"
    eventually(lambda: moved[0] not in owners(endpoint), "the engine has heard of the end", 10)
    eventually(lambda: not owners(endpoint) & set(names), "the engine takes the others for idle", 5 * IDLE_S)
    eventually(lambda: len(found := keys_by_ingress(endpoint)) == 2 and victim not in found, "another ingress", 60)
