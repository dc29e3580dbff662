"""What routers are told of engines: what the coordinator has heard, and no more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from coordinator_reports import MadeUpEngine, began, cache_report, over

from cache_actor.cluster import Cluster
from cache_actor.engine_snapshots import ANCHOR_S, WORKFLOWS_TOLD, snapshots_of
from cache_actor.messages import MAX_MESSAGE_BYTES, Anchor, Work, WorkflowSeen
from cache_actor.snapshot_deltas import SnapshotEncoder
from cache_actor.snapshots import EngineSnapshot, Resident
from serving.naming import MAX_ID_CHARACTERS

ANCHOR = Anchor("coder", b"1234" * 40)


class Desk:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.engines = {name: MadeUpEngine(name) for name in "ef"}
        self.clock = itertools.count(1000)
        for name in "ef":
            self.hear(name)

    def hear(self, engine: str, *events: object, **more: object) -> None:
        report = self.engines[engine].report(*events, **more)  # type: ignore[arg-type]
        self.now = float(next(self.clock))
        self.cluster.hear(report, self.now)

    def call(self, engine: str, workflow: str, **residency: list[int]) -> None:
        self.hear(engine, began(workflow))
        self.hear(
            engine, over(workflow, tokens=400), cache=[cache_report(residency={workflow: [300, 90], **residency})]
        )

    def told(self) -> dict[str, EngineSnapshot]:
        return {one.engine: one for one in snapshots_of(self.cluster, self.now)}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_workflows_are_told_where_something_of_them_is(desk: Desk) -> None:
    desk.call("e", "w")
    told = desk.told()
    assert told["e"].workflows == {"w": Resident(300, 90)}
    assert told["f"].workflows == {}
    assert told["e"].capacity_tokens == 1000


def test_contexts_count_beyond_their_agents_anchors_and_anchors_once(desk: Desk) -> None:
    desk.hear("e", anchors=[ANCHOR])
    for workflow in "uvw":
        desk.call("e", workflow)
    desk.told()  # engines are counted in turns
    told = desk.told()["e"]
    assert told.anchors == {"coder": 40}
    assert told.needed_tokens == 3 * (410 - 40) + 40
    assert desk.told()["f"].needed_tokens == 0


def test_a_prompt_that_was_refused_as_too_long_is_nothing_that_an_engine_has_to_hold(desk: Desk) -> None:
    desk.hear("e", began("w", tokens=90_000))
    desk.hear("e", replace(over("w", tokens=90_000), output_tokens=0))
    desk.told()
    assert desk.told()["e"].needed_tokens == 0


def test_anchors_of_agents_that_have_not_called_for_long_are_not_told(desk: Desk) -> None:
    desk.hear("e", anchors=[ANCHOR])
    desk.call("e", "w")
    desk.now += ANCHOR_S + 1
    assert desk.told()["e"].anchors == {}


def test_a_workflow_that_has_moved_is_left_behind_once_it_was_answered_elsewhere(desk: Desk) -> None:
    desk.call("e", "w")
    desk.hear("f", began("w"))
    assert desk.cluster.engines["e"].ends == {}  # until then the copy may be needed
    assert "w" in desk.told()["e"].workflows
    desk.hear("f", over("w"))
    assert list(desk.cluster.engines["e"].ends) == ["w"]
    assert desk.told()["e"].workflows == {}
    assert desk.cluster.counts["copies_retired"] == 1


def test_a_late_word_of_the_engine_that_was_left_does_not_bring_a_workflow_back(desk: Desk) -> None:
    desk.hear("e", began("w"), began("w"))
    desk.hear("f", began("w"))
    desk.hear("e", over("w"))
    assert desk.cluster.workflows["w"].engine == "f"
    desk.hear("f", over("w"))
    assert list(desk.cluster.engines["e"].ends) == ["w"]


def test_an_engine_that_remembers_a_workflow_which_has_moved_does_not_get_it_back_but_is_told(desk: Desk) -> None:
    desk.call("e", "w")
    desk.hear("f", began("w"))
    desk.hear("e", seen=[WorkflowSeen("w", None, ["coder"], [400.0, 10.0, 1.0, 2.0], 1, 0)])
    assert desk.cluster.workflows["w"].engine == "f"
    desk.hear("f", over("w"))
    assert list(desk.cluster.engines["e"].ends) == ["w"]


def test_what_was_measured_and_said_is_passed_on(desk: Desk) -> None:
    engine = desk.engines["e"]
    engine.work = Work(1.0, 0.0, 0.0, 0, device_tokens=1000)
    desk.hear("e")
    engine.work = Work(2.0, 0.5, 0.9, 10_000, device_tokens=1000)
    engine.pending_tokens, engine.draining = 700, True
    desk.hear("e", *[over(f"w{number}") for number in range(8)])
    told = desk.told()["e"]
    assert told.prefill_token_s == pytest.approx(0.5 / 10_000)
    assert told.running_call_s == pytest.approx(0.4 / 8)
    assert (told.pending_tokens, told.draining) == (700, True)


def test_an_engine_that_has_not_said_how_large_it_is_is_left_out(desk: Desk) -> None:
    desk.engines["e"].work = Work()
    desk.hear("e")
    assert set(desk.told()) == {"f"}


def test_later_snapshots_have_higher_versions(desk: Desk) -> None:
    first = desk.told()["e"]
    desk.now += 0.2
    assert desk.told()["e"].version > first.version
    assert first.at < desk.now


def test_as_many_workflows_as_are_told_fit_in_a_message_whatever_their_ids() -> None:
    four_bytes_each = str.maketrans({str(digit): chr(0x1F300 + digit) for digit in range(10)})
    names = [f"{number:0{MAX_ID_CHARACTERS}d}".translate(four_bytes_each) for number in range(WORKFLOWS_TOLD)]
    workflows = {name: Resident(2**31, 2**31, 2**31) for name in names}
    assert len(workflows) == WORKFLOWS_TOLD
    encoder = SnapshotEncoder()
    encoder.tell([EngineSnapshot("e", 1, 0.0, workflows)], 0.0)
    whole = encoder.after(-1)
    assert whole is not None
    assert len(whole) <= MAX_MESSAGE_BYTES


def test_of_too_many_workflows_the_latest_are_told() -> None:
    cluster = Cluster()
    names = [f"w{number}" for number in range(WORKFLOWS_TOLD + 5)]
    residency = {name: [1, 0] for name in names}
    engine = MadeUpEngine("e")
    cluster.hear(engine.report(*[began(name) for name in names], cache=[cache_report(residency=residency)]), 1000.0)
    told = snapshots_of(cluster, 1000.0)[0].workflows
    assert len(told) == WORKFLOWS_TOLD
    assert names[-1] in told
    assert names[0] not in told
