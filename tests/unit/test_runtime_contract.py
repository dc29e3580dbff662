"""What every runtime policy promises, and what the layer does with one that breaks."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence

import pytest
from coordinator_reports import MadeUpEngine, began, cache_report, certain, over

from cache_actor.cluster import Cluster
from cache_actor.forecast import compiled
from cache_actor.runtime import FAILURES, Draft, Runtime, RuntimePolicy
from cache_actor.runtime_policies import RUNTIME_POLICIES, make_runtime_policies
from cache_actor.state import EngineState, WorkflowState


def cluster_of(workflows: int, forecast: bool = True) -> Cluster:
    """Paused workflows on one engine, most of each on the host."""
    cluster, engine = Cluster(), MadeUpEngine()
    cluster.anchors["tester"] = b"1234"
    names = [f"w{number}" for number in range(workflows)]
    cluster.hear(engine.report(*[began(name) for name in names]), 1.0)
    cluster.hear(
        engine.report(
            *[over(name) for name in names], cache=[cache_report(residency={name: [10, 900] for name in names})]
        ),
        2.0,
    )
    begun = cluster.take(workflows)[0]
    if forecast:
        made = compiled(certain(begun, ["coder", "tester"], "tester"), [one.length for one in begun], 0.8, 2.0)
        for prefix, one in zip(begun, made, strict=True):
            cluster.expect(prefix.workflow, one, 2.0)
    return cluster


def policy_of(name: str) -> RuntimePolicy:
    """One that is set to do something."""
    (policy,) = make_runtime_policies([name], {"admission": {"controller": "fixed"}})
    return policy


@pytest.mark.parametrize("name", RUNTIME_POLICIES)
class TestContract:
    def test_only_the_draft_is_changed(self, name: str) -> None:
        cluster = cluster_of(3)
        engine = cluster.engines["e"]
        before = copy.deepcopy((cluster.workflows, engine))
        policy = policy_of(name)
        policy.act(list(cluster.workflows.values()), engine, cluster, Draft())
        assert [vars_of(state) for state in cluster.workflows.values()] == [vars_of(one) for one in before[0].values()]
        assert engine == before[1]

    def test_without_forecasts_it_does_what_it_would_without_news(self, name: str) -> None:
        cluster = cluster_of(3, forecast=False)
        draft, without_news = Draft(), Draft()
        policy_of(name).act(list(cluster.workflows.values()), cluster.engines["e"], cluster, draft)
        policy_of(name).act([], cluster.engines["e"], cluster, without_news)
        assert draft == without_news

    def test_with_forecasts_it_does_something(self, name: str) -> None:
        cluster = cluster_of(3)
        policy = policy_of(name)
        for number in range(20):  # a workflow whose next agent can be told from the one that calls
            for agent in ("coder", "tester", "planner"):
                policy.observe(began(f"v{number}", agent), cluster.engines["e"])
        draft = Draft()
        policy.act(list(cluster.workflows.values()), cluster.engines["e"], cluster, draft)
        assert draft != Draft()

    def test_it_forgets_workflows_that_have_ended(self, name: str) -> None:
        cluster = cluster_of(50)
        policy = policy_of(name)
        policy.act(list(cluster.workflows.values()), cluster.engines["e"], cluster, Draft())
        for workflow in cluster.workflows:
            policy.ended(workflow)
        kept = [value for value in vars(policy).values() if isinstance(value, Container)]
        assert not any(workflow in value for value in kept for workflow in cluster.workflows)


def vars_of(state: WorkflowState) -> tuple[object, ...]:
    return state.id, state.engine, state.forecast, dict(state.residency), list(state.decisions), state.path.length


class Broken(RuntimePolicy):
    name = "broken"

    def act(self, news: Sequence[WorkflowState], engine: EngineState, cluster: Cluster, draft: Draft) -> None:
        raise RuntimeError("a fault in a policy")


class TestLayer:
    def test_a_policy_that_fails_is_left_out_and_the_others_go_on(self) -> None:
        cluster = cluster_of(2)
        runtime = Runtime([Broken(), *make_runtime_policies(["call-order"])])
        for _ in range(FAILURES):
            draft = runtime.act(list(cluster.workflows.values()), cluster.engines["e"], cluster)
        assert [policy.name for policy in runtime.policies] == ["call-order"]
        assert runtime.failures["broken"] == FAILURES
        assert draft.priorities == {}  # told the first time
        assert runtime.act([], cluster.engines["e"], cluster) == Draft()

    def test_a_policy_of_somebodys_own_is_found_by_its_import_path(self) -> None:
        (policy,) = make_runtime_policies([f"{__name__}:Broken", f"{__name__}:Broken"])
        assert type(policy).__name__ == "Broken"

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("speed", "'speed'; choose from kv-reuse, kv-prefetch"),
            ("no.such.module:Policy", "cannot be imported: No module"),
            ("cache_actor.runtime:Nothing", "cannot be imported"),
            ("cache_actor.runtime:Draft", "is no subclass"),
            ("cache_actor.runtime:FAILURES", "is no subclass"),
        ],
    )
    def test_what_is_no_policy_is_refused_with_the_reason(self, name: str, reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            make_runtime_policies([name])
