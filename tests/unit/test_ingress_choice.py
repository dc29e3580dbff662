"""Which ingress a request goes to: the same for all of a workflow, by the names that the ingress itself goes by."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ray.serve._private.common import StreamingHTTPRequest
from ray.serve._private.request_router.common import ReplicaQueueLengthCache, RequestRoutingContext
from ways_to_name import SOURCES, merged

from serving.benchmark.ingress_cost import measure
from serving.config import VENDOR_HEADERS, IdentityConfig
from serving.conversations import ConversationIndex
from serving.errors import ApiError
from serving.identity import header_sources, identify
from serving.ingress_choice import PATIENCE_S, RETRY_S, RequestKeys, Silence, order, ranks
from serving.ingress_router import IngressRouter

HEADER_SOURCES = [(source, headers) for source, headers, body in SOURCES if not body]
NAMES = sorted(
    {name for names in VENDOR_HEADERS for name in (names.session, names.child, names.parent) if name}
    | {"x-workflow-id", "x-session-id", "x-parent-workflow-id", "baggage", "x-agent-name"}
)
VALUES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda text: text.encode(errors="surrogatepass")),
    st.text("ab", max_size=200).map(lambda text: f"gen_ai.conversation.id={text},x=1".encode()),
)
RAW_HEADERS = st.lists(st.tuples(st.sampled_from([name.encode() for name in NAMES]), VALUES), max_size=8)
INGRESSES = st.lists(st.text(max_size=4), min_size=1, max_size=6, unique=True)


def keys(config: IdentityConfig | None = None) -> RequestKeys:
    return RequestKeys([(names.session, names.child) for _, names in header_sources(config or IdentityConfig())])


def scope(headers: list[tuple[bytes, bytes]], path: str = "/v1/chat/completions", root: str = "") -> dict[str, Any]:
    return {"type": "http", "path": root + path, "root_path": root, "headers": headers}


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


class TestKeys:
    @given(RAW_HEADERS)
    @example([(b"baggage", b"gen_ai.conversation.id=b"), (b"session_id", b"s"), (b"x-workflow-id", b" \x00")])
    @example([(b"x-claude-code-session-id", b"parent"), (b"x-claude-code-agent-id", b"child")])
    @example([(b"x-workflow-id", "Zürich".encode()), (b"x-workflow-id", b"second")])
    def test_it_names_the_workflow_that_the_ingress_finds_in_the_headers(
        self, headers: list[tuple[bytes, bytes]]
    ) -> None:
        first: dict[str, str] = {}
        for name, value in headers:  # as Starlette's Headers have it
            first.setdefault(name.decode(), value.decode("latin-1"))
        key = keys().key(scope(headers))
        try:
            identity = identify(first, {}, IdentityConfig(), ConversationIndex(10)).identity
        except ApiError:  # a flag that cannot be read: refused, wherever it goes
            return
        assert key == (None if identity.source == "inferred" else f"workflow {identity.workflow}")

    @pytest.mark.parametrize("position", range(len(HEADER_SOURCES)), ids=[source for source, _ in HEADER_SOURCES])
    def test_a_source_wins_over_all_that_come_after_it(self, position: int) -> None:
        headers, _ = merged(SOURCES[position:])
        assert keys().key(scope(raw(headers))) == keys().key(scope(raw(HEADER_SOURCES[position][1])))

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.sampled_from(["", "/prefix"]))
    def test_a_request_about_a_workflow_goes_where_its_calls_go(self, name: str, root: str) -> None:
        called = keys().key(scope([(b"x-workflow-id", name.encode())], root=root))
        if called is not None:
            assert keys().key(scope([(b"x-workflow-id", b"other")], f"/v1/workflows/{name}", root)) == called

    def test_without_a_workflow_it_is_the_api_key(self) -> None:
        bearer, other = [(b"authorization", b"Bearer one")], [(b"x-api-key", b"two")]
        assert keys().key(scope(bearer)) == keys().key(scope(bearer + other)) != keys().key(scope(other)) is not None
        assert keys().key(scope(bearer, "/v1/workflows")) == keys().key(scope(bearer, "/v1/workflows/"))
        assert keys().key(scope([(b"authorization", b"")])) is None
        assert keys().key(scope([])) is None

    def test_an_api_key_is_no_workflow_of_that_name(self) -> None:
        assert keys().key(scope([(b"x-api-key", b"w")])) != keys().key(scope([(b"x-workflow-id", b"w")]))


class TestOrder:
    @given(st.text(max_size=8), INGRESSES, st.randoms())
    def test_the_same_workflow_has_the_same_ingress_in_every_proxy(
        self, key: str, ingresses: list[str], mixed: Any
    ) -> None:
        elsewhere = list(ingresses)
        mixed.shuffle(elsewhere)
        assert order(key, ingresses) == order(key, elsewhere)
        assert sorted(order(key, ingresses)) == sorted(ingresses)

    @given(st.text(max_size=8), INGRESSES)
    def test_one_that_goes_moves_only_its_own_each_to_its_next(self, key: str, ingresses: list[str]) -> None:
        before = order(key, ingresses)
        assert order(key, [one for one in ingresses if one != before[0]]) == before[1:]

    def test_workflows_are_spread(self) -> None:
        counts = Counter(order(f"workflow w{number}", ["a", "b", "c"])[0] for number in range(3000))
        assert all(850 < count < 1150 for count in counts.values())


class TestRanks:
    @given(st.none() | st.text(max_size=8), INGRESSES, st.data())
    def test_every_ingress_that_answers_is_tried_once(self, key: str | None, names: list[str], data: Any) -> None:
        known = data.draw(st.sets(st.sampled_from(names)))
        silent = data.draw(st.sets(st.sampled_from(names))) - known
        ranked = ranks(key, names, known, silent)
        flat = [name for rank in ranked for name in rank]
        assert len(flat) == len(set(flat))
        assert set(names) - silent <= set(flat) <= set(names)
        assert all(ranked)

    def test_a_workflow_goes_to_the_first_and_to_the_next_when_that_is_full(self) -> None:
        names = ["a", "b", "c"]
        assert ranks("w", names, names, ()) == [[name] for name in order("w", names)]

    def test_without_a_key_it_is_the_less_busy_of_two(self) -> None:
        assert [len(rank) for rank in ranks(None, ["a", "b", "c"], (), ())] == [2, 1]

    def test_who_is_silent_is_asked_in_passing_and_never_waited_for(self) -> None:
        first, second, third = order("w", ["a", "b", "c"])
        assert ranks("w", ["a", "b", "c"], {second, third}, {first}) == [[second, first], [third]]
        assert ranks("w", ["a", "b", "c"], {third}, {first}) == [[second], [third]]

    def test_if_all_are_silent_they_are_asked_in_their_order(self) -> None:
        assert ranks("w", ["a", "b"], (), {"a", "b"}) == [[name] for name in order("w", ["a", "b"])]


class TestSilence:
    def test_it_begins_after_a_while_and_is_looked_into_again(self) -> None:
        silence = Silence()
        silence.asked("a", 0.0)
        assert not silence.silent("a", PATIENCE_S)
        silence.asked("a", 1.1 * PATIENCE_S)
        assert silence.silent("a", 1.1 * PATIENCE_S)
        assert not silence.silent("a", 1.1 * RETRY_S)
        silence.asked("a", 1.1 * RETRY_S)
        assert not silence.silent("a", 1.1 * RETRY_S + PATIENCE_S)
        assert silence.silent("a", 1.1 * RETRY_S + 1.1 * PATIENCE_S)

    def test_one_that_answers_or_goes_is_not_silent(self) -> None:
        silence = Silence()
        for name in ("a", "b", "c"):
            silence.asked(name, 0.0)
        silence.heard("a")
        silence.keep({"a", "c"})
        assert [silence.silent(name, 2 * PATIENCE_S) for name in ("a", "b", "c")] == [False, False, True]


class TestRouter:
    """The class that Ray Serve has, without Serve."""

    names = ("a", "b")

    def router(self) -> Any:
        router: Any = IngressRouter.__new__(IngressRouter)
        router._replica_queue_len_cache = ReplicaQueueLengthCache()
        router.initialize_state([["x-workflow-id", None]])  # as it comes, through JSON
        return router

    def chosen(self, router: Any, argument: Any, is_http: bool = True) -> list[list[str]]:
        replicas: Any = [SimpleNamespace(replica_id=_Id(name)) for name in self.names]
        request: Any = SimpleNamespace(
            args=[argument],
            metadata=SimpleNamespace(is_http_request=is_http),
            routing_context=RequestRoutingContext(),
        )
        ranked = asyncio.run(router.choose_replicas(replicas, request))
        assert request.routing_context.should_backoff
        return [[replica.replica_id.unique_id for replica in rank] for rank in ranked]

    def test_it_reads_what_serves_proxy_sends(self) -> None:
        sent = pickle.dumps(StreamingHTTPRequest(scope([(b"x-workflow-id", b"w")]), proxy_actor_name="proxy"))
        assert self.chosen(self.router(), sent) == [[name] for name in order("workflow w", self.names)]

    @pytest.mark.parametrize("argument", [b"", b"garbage", None, 7, pickle.dumps({"path": 1}), pickle.dumps(None)])
    def test_garbage_goes_to_any_ingress(self, argument: Any) -> None:
        router = self.router()
        assert [sorted(rank) for rank in self.chosen(router, argument)] == [["a", "b"]]
        assert [sorted(rank) for rank in self.chosen(router, argument, is_http=False)] == [["a", "b"]]

    @given(st.dictionaries(st.sampled_from(["path", "root_path", "headers"]), st.none() | st.integers() | st.text()))
    def test_a_scope_that_is_none_goes_to_any_ingress(self, broken: dict[str, Any]) -> None:
        sent = pickle.dumps(StreamingHTTPRequest(scope([(b"x-workflow-id", b"w")]) | broken, proxy_actor_name="p"))
        flat = [name for rank in self.chosen(self.router(), sent) for name in rank]
        assert sorted(flat) == ["a", "b"]


class _Id(str):
    """As `ReplicaID` is used: a key of dictionaries with a `unique_id`."""

    @property
    def unique_id(self) -> str:
        return str(self)


def test_what_a_decision_costs_is_measured() -> None:
    figures = measure(50)
    assert 0 < figures["ingress_p50_us"] <= figures["ingress_p99_us"]
