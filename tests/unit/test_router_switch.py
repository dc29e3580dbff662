"""Which router decides is switched at one ingress and follows at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport
from cache_actor.cluster import Cluster
from cache_actor.limits import answer_to
from cache_actor.messages import decode, encode
from serving.config import RouterConfig
from serving.errors import ApiError
from serving.router_switch import RouterSwitch
from serving.routing_table import RoutingTable

POWER_OF_TWO = "serving.benchmark.routers.power_of_two:PowerOfTwo"
CHOICES = RouterConfig(others=(POWER_OF_TWO,)).choices()


class MadeUpIngress:
    """An ingress that knows its router, and talks to a coordinator."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self.cluster, self.number = name, cluster, 0
        self.table = RoutingTable("workflow")
        self.router = RouterSwitch(self.table, CHOICES)

    def talk(self) -> None:
        self.number += 1
        report = self.router.tell(AdmissionReport(self.name, 1, self.number, {}, {}, [], []))
        said = decode(encode(report))
        assert isinstance(said, AdmissionReport)
        self.cluster.hear_ingress(said, float(self.number))
        answer = decode(encode(answer_to(self.cluster, self.name, float(self.number))))
        assert isinstance(answer, AdmissionAnswer)
        self.router.hear(answer)

    @property
    def now(self) -> tuple[str, dict[str, Any]]:
        status = self.table.status()
        return status["name"], status["parameters"]


@pytest.fixture
def ingresses() -> list[MadeUpIngress]:
    cluster = Cluster()
    return [MadeUpIngress(name, cluster) for name in "ij"]


def talk(ingresses: list[MadeUpIngress]) -> None:
    for _ in range(2):
        for one in ingresses:
            one.talk()


def test_nobody_switches_and_nothing_changes(ingresses: list[MadeUpIngress]) -> None:
    talk(ingresses)
    assert [one.now for one in ingresses] == [("workflow", {})] * 2


def test_the_last_switch_wins_wherever_it_was(ingresses: list[MadeUpIngress]) -> None:
    ingresses[0].router.switch({"name": "workflow", "parameters": {"margin_s": 1.5}})
    talk(ingresses)
    assert [one.now for one in ingresses] == [("workflow", {"margin_s": 1.5})] * 2
    ingresses[1].router.switch({"name": POWER_OF_TWO})
    talk(ingresses)
    assert [one.now for one in ingresses] == [(POWER_OF_TWO, {})] * 2


def test_one_that_begins_and_a_coordinator_that_begins_hear_of_it(ingresses: list[MadeUpIngress]) -> None:
    ingresses[0].router.switch({"name": "session-hash"})
    talk(ingresses)
    anew = Cluster()
    late = [*ingresses, MadeUpIngress("k", anew)]
    for one in late:
        one.cluster = anew
    talk(late)
    assert {one.now[0] for one in late} == {"session-hash"}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "name"),
        ({"name": ["workflow"]}, "name"),
        ({"name": "fastest"}, "name"),
        ({"name": "os:path"}, "name"),
        ({"name": "serving.benchmark.routers.prefix_affinity:PrefixAffinity"}, "name"),
        ({"name": "workflow", "parameters": [1]}, "parameters"),
        ({"name": "workflow", "parameters": {"margin": 1}}, "parameters"),
        ({"name": "workflow", "parameters": {"margin_s": "much"}}, "parameters"),
    ],
)
def test_what_cannot_be_is_refused_and_an_import_path_that_the_operator_has_not_named(
    asked: dict[str, Any], param: str, ingresses: list[MadeUpIngress]
) -> None:
    with pytest.raises(ApiError) as refused:
        ingresses[0].router.switch(asked)
    assert (refused.value.status, refused.value.body()["error"]["param"]) == (400, param)
    assert ingresses[0].now == ("workflow", {})


def test_what_another_version_was_switched_to_is_passed_over_once(
    ingresses: list[MadeUpIngress], caplog: pytest.LogCaptureFixture
) -> None:
    ingresses[0].router.switch({"name": "session-hash"})
    answer = AdmissionAnswer({}, [])
    for router in ('["newest", {}]', "no JSON", "[]"):
        answer = replace(answer, router=router, rerouted=answer.rerouted + 1e12)
        ingresses[0].router.hear(answer)
        ingresses[0].router.hear(answer)
    assert len([one for one in caplog.records if "cannot be made" in one.message]) == 3
    assert ingresses[0].now == ("session-hash", {})
