"""What a replica tells the coordinator, and what it tells again when that was lost."""

from __future__ import annotations

from cache_actor.cluster import Cluster
from cache_actor.messages import (
    MAX_MESSAGE_BYTES,
    EngineReport,
    Eviction,
    Receipt,
    RequestIdentity,
    SyncReport,
    encode,
)
from serving.call_log import ANCHORS_TOLD, ENDED_TOLD, MAX_ENDED, MAX_EVENTS, SEEN_CALLS, SEEN_WORKFLOWS, CallLog
from serving.calls import Usage
from serving.coordination import IN_FLIGHT
from serving.health import Load
from serving.naming import MAX_ID_CHARACTERS
from serving.sglang_plugin.losses import MAX_KEPT
from serving.sglang_plugin.prefetch import MAX_RECEIPTS


def who(workflow: str, agent: str = "coder") -> RequestIdentity:
    return RequestIdentity(workflow, agent)


def played(log: CallLog, workflows: int, calls: int = 3) -> None:
    for number in range(workflows):
        for place in range(calls):
            log.began(who(f"w{number}", f"a{place}"), 100.0 + place, 10)
            log.over(who(f"w{number}", f"a{place}"), 100.5 + place, Usage(True, 12, 3, 4, 5))


def paths(cluster: Cluster) -> dict[str, tuple[list[str], int]]:
    return {name: (list(state.path.agents), state.path.length) for name, state in cluster.workflows.items()}


def test_an_engine_that_was_emptied_holds_nothing_and_its_workflows_go_on() -> None:
    cluster, log = Cluster(), CallLog("e", 7, 100)
    played(log, 2)
    cluster.hear(log.report(Load()), 101.0)
    before = paths(cluster)
    assert cluster.engines["e"].agents
    log.emptied()
    cluster.hear(log.report(Load()), 102.0)
    assert not cluster.engines["e"].agents
    assert not any(state.residency for state in cluster.workflows.values())
    assert paths(cluster) == before


class TestReports:
    def test_each_thing_is_told_once_and_reports_are_numbered(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 2)
        log.end("w0", "final")
        first, second = log.report(Load(1, 2)), log.report(Load())
        assert (first.engine, first.epoch, first.number, first.running, first.waiting) == ("e", 7, 1, 1, 2)
        assert len(first.events) == 12
        assert first.ended == {"w0": "final"}
        assert (second.number, second.events, second.ended, second.seen, second.cache) == (2, [], {}, [], [])
        assert not log.is_behind

    def test_what_was_applied_is_what_the_engine_says_whoever_sent_it(self) -> None:
        log = CallLog("e", 7, 100)
        log.answered(EngineReport(5, True, "", [], {}, {}, {}, [], 5))
        log.answered(EngineReport(9, False, "too old", [], {}, {}, {}, [], 12))
        report = log.report(Load())
        assert report.applied_plan == 12
        assert [one.plan for one in report.cache] == [5, 9]

    def test_all_that_lives_is_told_in_parts(self) -> None:
        log = CallLog("e", 7, 1000)
        played(log, 2 * SEEN_WORKFLOWS + 5)
        log.report(Load())
        log.tell_all()
        told: list[str] = []
        reports = 0
        while log.is_behind:
            report = log.report(Load())
            assert len(report.seen) <= SEEN_WORKFLOWS
            told += [one.workflow for one in report.seen]
            reports += 1
        assert reports == 3
        assert sorted(told) == sorted(f"w{number}" for number in range(2 * SEEN_WORKFLOWS + 5))

    def test_a_workflow_that_ended_is_not_told_to_live(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 3)
        log.tell_all()
        log.end("w1", "idle")
        assert {one.workflow for one in log.report(Load()).seen} == {"w0", "w2"}

    def test_it_is_bounded(self) -> None:
        log = CallLog("e", 7, 10)
        for number in range(MAX_EVENTS + 100):
            log.began(who(f"w{number}"), 1.0, 0)
        report = log.report(Load())
        assert len(report.events) <= MAX_EVENTS
        assert len(report.seen) <= 10

    def test_anchors_are_learned_of_answers_alone(self) -> None:
        log, prompt = CallLog("e", 7, 100), range(100)

        def call(number: int, usage: Usage) -> None:
            log.began(who(f"w{number}"), 1.0, len(prompt))
            log.over(who(f"w{number}"), 2.0, usage, prompt)

        for number in range(10):
            call(number, Usage(True, len(prompt)))  # refused: longer than what the engine can hold
        assert log.report(Load()).anchors == []
        for number in range(10):
            call(number, Usage(True, len(prompt), 1))
        assert [(one.agent, len(one.ids)) for one in log.report(Load()).anchors] == [("coder", 4 * len(prompt))]


class TestSize:
    def test_a_report_fits_a_message_however_long_names_are(self) -> None:
        log = CallLog("e" * 40, 7, 1000)

        def long(number: int) -> str:
            return f"{number:04}".ljust(MAX_ID_CHARACTERS, "\N{OLD PERSIAN SIGN A}")

        def call(workflow: int, agent: int) -> RequestIdentity:
            identity = RequestIdentity(long(workflow), long(agent), parent=long(5))
            log.began(identity, 1.0, 9000)
            return identity

        for workflow in range(SEEN_WORKFLOWS + 5):
            for agent in range(SEEN_CALLS):
                log.over(call(workflow, agent), 2.0, Usage(True, 9000, 1), range(9000))
        log.report(Load())
        log.tell_all()
        for number in range(MAX_EVENTS):
            call(number % 9, number % 9)
        for number in range(2 * ENDED_TOLD):
            log.end(long(2000 + number), "final")
        lost = [Eviction(long(number), "device", "low_value", 1 << 40) for number in range(MAX_KEPT)]
        receipts = [Receipt(1 << 60, "rejected", 1 << 40, "x" * 80)] * MAX_RECEIPTS
        for _ in range(IN_FLIGHT):
            log.answered(EngineReport(1, True, "", receipts, {}, {}, {}, lost, 1))
        report = log.report(Load())
        assert len(report.anchors) == ANCHORS_TOLD
        assert len(encode(report)) < MAX_MESSAGE_BYTES

    def test_ends_are_told_in_parts_and_bounded(self) -> None:
        log = CallLog("e", 7, 100)
        for number in range(MAX_ENDED + 500):
            log.end(f"w{number}", "final")
        told: dict[str, str] = {}
        for _ in range(MAX_ENDED // ENDED_TOLD + 1):
            told |= log.report(Load()).ended
        assert len(told) == MAX_ENDED
        assert f"w{MAX_ENDED + 499}" in told
        assert log.report(Load()).ended == {}


class TestLoss:
    """A coordinator that was restarted, or an answer that never came: what is told again makes the same state."""

    def heard(self, *reports: SyncReport) -> Cluster:
        cluster = Cluster()
        for report in reports:
            cluster.hear(report, 200.0)
        return cluster

    def test_a_new_coordinator_knows_after_a_lost_report_what_the_old_one_would(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 5)
        before = log.report(Load())
        old = self.heard(before)
        log.lost(before)
        new = self.heard(log.report(Load()))
        assert paths(new) == paths(old)

    def test_a_coordinator_that_did_hear_it_counts_nothing_twice(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 5)
        cluster = self.heard(report := log.report(Load()))
        before = paths(cluster)
        log.lost(report)
        engine = cluster.hear(log.report(Load()), 201.0)
        assert paths(cluster) == before
        assert engine.tell_all
        assert cluster.counts["reports_missed"] == 1
        assert set(engine.news) == set(before)  # told anew: its answer may have been lost

    def test_ends_and_receipts_are_not_lost(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 2)
        log.end("w0", "final")
        log.answered(EngineReport(5, True, "", [], {}, {}, {}, [], 5))
        log.lost(log.report(Load()))
        again = log.report(Load())
        assert again.ended == {"w0": "final"}
        assert [one.plan for one in again.cache] == [5]

    def test_a_workflow_that_came_back_meanwhile_is_not_ended(self) -> None:
        log = CallLog("e", 7, 100)
        played(log, 1)
        log.end("w0", "idle")
        report = log.report(Load())
        log.began(who("w0"), 300.0, 0)
        log.lost(report)
        again = log.report(Load())
        assert again.ended == {}
        assert [one.workflow for one in again.seen] == ["w0"]
