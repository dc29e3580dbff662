"""What ingresses say of their gates: sums, overtaken and lost reports, who is paused."""

from __future__ import annotations

from collections import Counter

from coordinator_reports import MadeUpEngine, began, over
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission_messages import AdmissionReport, GateEvent
from cache_actor.cluster import Cluster
from cache_actor.decisions import in_words
from cache_actor.ingresses import EARLY_EVENTS, EARLY_KEPT, INGRESS_SILENT_S, INGRESSES_KEPT, Ingresses

COUNTS = st.dictionaries(st.sampled_from(["e", "f", ""]), st.integers(0, 9), max_size=3)
REPORTS = st.lists(
    st.tuples(st.sampled_from(["i", "j"]), COUNTS, COUNTS, st.sets(st.sampled_from(["w0", "w1", "w2"]))), max_size=20
)


def report(number: int = 1, ingress: str = "i", epoch: int = 1, **fields: object) -> AdmissionReport:
    given_fields = {"admitted": {}, "held": {}, "paused": [], "events": []} | fields
    return AdmissionReport(ingress, epoch, number, **given_fields)  # type: ignore[arg-type]


class TestSums:
    @given(REPORTS)
    def test_the_latest_report_of_each_counts(
        self, reports: list[tuple[str, dict[str, int], dict[str, int], set[str]]]
    ) -> None:
        ingresses, latest = Ingresses(), {}
        for number, (name, admitted, held, paused) in enumerate(reports, start=1):
            ingresses.hear(report(number, name, admitted=admitted, held=held, paused=sorted(paused)), 1.0)
            latest[name] = (admitted, held, paused)
        assert ingresses.admitted("e") == sum(admitted.get("e", 0) for admitted, _, _ in latest.values())
        assert ingresses.held("e") == sum(held.get("e", 0) + held.get("", 0) for _, held, _ in latest.values())
        assert ingresses.paused == Counter(name for _, _, paused in latest.values() for name in paused)
        assert {name for name, paused in ingresses.take_changed().items() if paused} == set(ingresses.paused)

    def test_a_report_that_was_overtaken_changes_nothing(self) -> None:
        ingresses = Ingresses()
        ingresses.hear(report(2, admitted={"e": 5}), 1.0)
        assert ingresses.hear(report(1, admitted={"e": 1}, events=[GateEvent("w", "held", "", 1.0)]), 1.1) == []
        assert ingresses.admitted("e") == 5

    def test_an_ingress_that_has_started_again_begins_with_its_first_report(self) -> None:
        ingresses = Ingresses()
        ingresses.hear(report(9, admitted={"e": 5}, paused=["w"]), 1.0)
        ingresses.hear(report(1, epoch=2, admitted={"e": 1}), 1.1)
        assert ingresses.admitted("e") == 1
        assert not ingresses.paused

    def test_one_that_is_silent_is_forgotten_with_whom_it_had_paused(self) -> None:
        ingresses = Ingresses()
        ingresses.hear(report(admitted={"e": 5}, paused=["w"]), 1.0)
        ingresses.hear(report(ingress="j", admitted={"e": 2}), 1.0 + INGRESS_SILENT_S)
        ingresses.expire(1.1 + INGRESS_SILENT_S)
        assert ingresses.admitted("e") == 2
        assert ingresses.take_changed() == {"w": False}

    def test_it_is_bounded(self) -> None:
        ingresses = Ingresses()
        for number in range(INGRESSES_KEPT + 5):
            ingresses.hear(report(ingress=f"i{number}", paused=[f"w{number}"]), 1.0)
        for number in range(EARLY_KEPT + 5):
            ingresses.keep(GateEvent(f"w{number}", "held", "", 1.0))
        for at in range(EARLY_EVENTS + 5):
            ingresses.keep(GateEvent("often", "held", "", float(at)))
        assert len(ingresses.known) == len(ingresses.paused) == INGRESSES_KEPT
        assert ingresses.kept("w0") == []
        assert [event.at for event in ingresses.kept("often")] == [5.0, 6.0, 7.0, 8.0]

    def test_what_nobody_has_defined_is_no_event(self) -> None:
        events = [GateEvent("w", "over", "e", 1.0), GateEvent("w", "held", "e", 1.0)]
        assert Ingresses().hear(report(events=events), 1.0) == events[1:]


class TestWorkflows:
    def test_whoever_is_paused_is_news_where_it_lives(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear(engine.report(began("w"), over("w")), 1.0)
        cluster.engines["e"].news.clear()
        cluster.hear_ingress(report(1, paused=["w", "not known"]), 1.1)
        assert cluster.workflows["w"].paused
        assert list(cluster.engines["e"].news) == ["w"]
        cluster.engines["e"].news.clear()
        cluster.hear_ingress(report(2, paused=["w"]), 1.2)
        assert not cluster.engines["e"].news
        cluster.hear_ingress(report(3), 1.3)
        assert not cluster.workflows["w"].paused
        assert list(cluster.engines["e"].news) == ["w"]

    def test_one_that_is_heard_of_later_is_paused_from_the_start(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        cluster.hear_ingress(report(paused=["w"]), 1.0)
        cluster.hear(engine.report(began("w"), over("w")), 1.1)
        assert cluster.workflows["w"].paused
        cluster.expire(5.0 + INGRESS_SILENT_S, 900.0)
        assert not cluster.workflows["w"].paused

    def test_its_log_says_what_became_of_it_at_the_gate(self) -> None:
        cluster, engine = Cluster(), MadeUpEngine()
        came = [GateEvent("w", "held", "", 1.0), GateEvent("w", "let_in", "e", 3.5, 2.5)]
        cluster.hear_ingress(report(1, events=came), 3.5)
        cluster.hear(engine.report(began("w"), over("w")), 3.6)
        cluster.hear_ingress(report(2, events=[GateEvent("w", "paused", "e", 4.0)]), 4.0)
        texts = [in_words(entry) for entry in cluster.workflows["w"].decisions]
        assert texts[:3] == ["its call waits for a place", "its call has a place after 2.5 s", "coder begins"]
        assert texts[-1].startswith("it gives its place up")
        assert cluster.counts["gate_let_in"] == 1
