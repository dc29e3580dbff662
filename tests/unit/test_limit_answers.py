"""What an ingress is answered: its part of every limit, and who may be paused."""

from __future__ import annotations

import pytest
from coordinator_reports import MadeUpEngine, began, over
from hypothesis import given
from hypothesis import strategies as st

from cache_actor.admission_messages import AdmissionReport
from cache_actor.cluster import Cluster
from cache_actor.limits import MAX_IDLE, answer_to, split
from cache_actor.messages import decode, encode

DEMANDS = st.dictionaries(st.text(max_size=3), st.integers(0, 500), min_size=1, max_size=8)


class TestSplit:
    @given(st.integers(1, 300), DEMANDS)
    def test_places_are_all_given_out_and_to_nobody_less_than_one(self, limit: int, demands: dict[str, int]) -> None:
        given_out = split(limit, demands)
        active = [name for name, demand in demands.items() if demand] or list(demands)
        assert given_out.keys() == demands.keys()
        assert min(given_out.values()) >= 1
        assert sum(given_out[name] for name in active) == max(limit, len(active))

    @given(st.integers(1, 300), DEMANDS)
    def test_who_has_more_gets_no_less(self, limit: int, demands: dict[str, int]) -> None:
        given_out = split(limit, demands)
        for name, demand in demands.items():
            assert all(given_out[name] >= given_out[other] for other in demands if demands[other] < demand)

    @pytest.mark.parametrize(
        ("demands", "parts"),
        [
            ({"i": 7}, {"i": 16}),
            ({"i": 0}, {"i": 16}),
            ({"i": 30, "j": 10}, {"i": 12, "j": 4}),
            ({"i": 100, "j": 1}, {"i": 15, "j": 1}),
            ({"i": 20, "j": 0}, {"i": 16, "j": 1}),
            ({"i": 0, "j": 0}, {"i": 8, "j": 8}),
        ],
    )
    def test_it_goes_by_what_each_has(self, demands: dict[str, int], parts: dict[str, int]) -> None:
        assert split(16, demands) == parts


def cluster_of(workflows: int, limit: int | None) -> Cluster:
    """Workflows between two calls on one engine; later ones have longer contexts."""
    cluster, engine = Cluster(), MadeUpEngine()
    for number in range(workflows):
        name, tokens = f"w{number}", 100 * (number + 1)
        calls = [began(name, at=1.0, tokens=tokens), over(name, at=2.0, tokens=tokens), began(name, at=12.0)]
        cluster.hear(engine.report(*calls, over(name, at=13.0, tokens=tokens)), 13.0)
    cluster.engines["e"].limit = limit
    return cluster


def told(
    cluster: Cluster, admitted: int, ingress: str = "i", mode: str | int = "on", switched: float = 0.0
) -> AdmissionReport:
    report = AdmissionReport(ingress, 1, 1, {"e": admitted}, {}, [], [], mode, switched)
    cluster.hear_ingress(report, 14.0)
    return report


class TestAnswer:
    def test_without_a_limit_everybody_may_be_in(self) -> None:
        cluster = cluster_of(3, None)
        told(cluster, 3)
        answer = answer_to(cluster, "i", 14.0)
        assert answer.limits == {"e": None}
        assert answer.idle == []

    def test_nobody_is_named_while_there_is_room(self) -> None:
        cluster = cluster_of(3, 3)
        told(cluster, 3)
        assert answer_to(cluster, "i", 14.0).idle == []

    def test_those_with_the_smallest_contexts_are_named_when_too_many_are_in(self) -> None:
        cluster = cluster_of(MAX_IDLE + 5, 3)
        cluster.workflows["w1"].paused = True
        cluster.workflows["w2"].path.began("coder", 14.0, 10)
        told(cluster, MAX_IDLE + 5)
        answer = answer_to(cluster, "i", 16.0)
        assert len(answer.idle) == MAX_IDLE
        assert [one.workflow for one in answer.idle[:2]] == ["w0", "w3"]
        first = answer.idle[0]
        assert (first.tokens, first.gap_s, first.remaining) == (110, 7.0, 1.0)
        assert decode(encode(answer)) == answer

    def test_each_ingress_has_its_part(self) -> None:
        cluster = cluster_of(3, 9)
        told(cluster, 20)
        told(cluster, 10, "j")
        assert answer_to(cluster, "i", 14.0).limits == {"e": 6}
        assert answer_to(cluster, "j", 14.0).limits == {"e": 3}

    def test_a_number_of_somebodys_is_shared_as_a_limit_that_was_found(self) -> None:
        cluster = cluster_of(3, 9)
        told(cluster, 20, "i", mode=12)
        told(cluster, 10, "j", mode=12)
        assert [answer_to(cluster, name, 14.0).limits["e"] for name in "ij"] == [8, 4]

    def test_a_switch_at_one_ingress_holds_for_all_and_the_latest_for_longest(self) -> None:
        cluster = cluster_of(3, 9)
        told(cluster, 20, "i")
        told(cluster, 10, "j", mode="off", switched=5.0)
        answer = answer_to(cluster, "i", 14.0)
        assert (answer.limits, answer.mode, answer.switched) == ({"e": None}, "off", 5.0)
        told(cluster, 10, "k", mode=4, switched=6.0)
        assert {(one.mode, one.switched) for one in (answer_to(cluster, name, 14.0) for name in "ijk")} == {(4, 6.0)}

    def test_without_a_switch_each_goes_by_its_own_mode(self) -> None:
        cluster = cluster_of(3, 9)
        told(cluster, 20, "i", mode="off")
        told(cluster, 10, "j")
        assert [answer_to(cluster, name, 14.0).mode for name in "ij"] == ["off", "on"]
        assert answer_to(cluster, "i", 14.0).limits == {"e": None}
