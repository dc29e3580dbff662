"""The lifecycle of workflows, its limits, and a comparison with a naive model."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache_actor.messages import RequestIdentity
from cache_actor.workflows import (
    MAX_AGENTS_PER_WORKFLOW,
    OTHER_AGENTS,
    EndReason,
    State,
    Workflow,
    WorkflowRegistry,
)

TIMEOUT_S = 10.0


def call(workflow: str = "w", agent: str = "a", final: bool = False) -> RequestIdentity:
    return RequestIdentity(workflow, agent, final=final)


@pytest.fixture
def registry() -> WorkflowRegistry:
    return WorkflowRegistry(TIMEOUT_S, max_workflows=3)


def known(registry: WorkflowRegistry, workflow: str = "w") -> Workflow:
    found = registry.get(workflow)
    assert found is not None
    return found


def run(registry: WorkflowRegistry, workflow: str, now: float, final: bool = False) -> None:
    registry.begin_call(call(workflow, final=final), now)
    registry.end_call(call(workflow, final=final), now)


def ids(registry: WorkflowRegistry, state: State | None = None) -> list[str]:
    return [workflow.id for workflow in registry.workflows(state)]


class TestLifecycle:
    def test_active_while_a_call_runs_and_idle_between_calls(self, registry: WorkflowRegistry) -> None:
        assert registry.get("w") is None
        workflow = registry.begin_call(call(), 1.0)
        assert (workflow.state, workflow.created, workflow.last_seen) == (State.ACTIVE, 1.0, 1.0)
        registry.begin_call(call(), 2.0)
        registry.end_call(call(), 3.0)
        assert workflow.state is State.ACTIVE
        registry.end_call(call(), 4.0)
        assert (workflow.state, workflow.calls, workflow.running) == (State.IDLE, 2, 0)
        assert (workflow.created, workflow.last_seen) == (1.0, 4.0)

    def test_a_final_call_ends_its_workflow_when_it_is_over(self, registry: WorkflowRegistry) -> None:
        workflow = registry.begin_call(call(final=True), 1.0)
        assert workflow.state is State.ACTIVE
        registry.end_call(call(final=True), 5.0)
        assert (workflow.state, workflow.ended, workflow.end_reason) == (State.ENDED, 5.0, EndReason.FINAL)

    def test_calls_that_run_when_the_final_one_ends_go_on_and_do_not_revive(self, registry: WorkflowRegistry) -> None:
        workflow = registry.begin_call(call(), 1.0)
        registry.begin_call(call(final=True), 2.0)
        registry.end_call(call(final=True), 3.0)
        assert (workflow.state, workflow.running) == (State.ENDED, 1)
        registry.end_call(call(), 4.0)
        assert (workflow.state, workflow.running, workflow.ended) == (State.ENDED, 0, 3.0)
        assert registry.take_ended() == ["w"]

    def test_ending_is_idempotent(self, registry: WorkflowRegistry) -> None:
        run(registry, "w", 1.0)
        first = registry.end("w", 2.0)
        assert registry.end("w", 3.0, EndReason.FINAL) is first is registry.get("w")
        assert first is not None
        assert (first.ended, first.end_reason) == (2.0, EndReason.REQUESTED)
        assert registry.take_ended() == ["w"]

    def test_ending_an_unknown_workflow_says_so(self, registry: WorkflowRegistry) -> None:
        assert registry.end("nobody", 1.0) is None
        assert registry.take_ended() == []

    def test_a_call_after_the_end_makes_it_active_again(self, registry: WorkflowRegistry) -> None:
        run(registry, "w", 1.0, final=True)
        workflow = registry.begin_call(call(agent="b"), 2.0)
        assert (workflow.state, workflow.ended, workflow.end_reason) == (State.ACTIVE, None, None)
        assert (workflow.calls, workflow.agents, workflow.created) == (2, {"a": 1, "b": 1}, 1.0)
        assert ids(registry) == ["w"]

    def test_a_call_that_outlived_the_end_is_counted_after_the_revival(self, registry: WorkflowRegistry) -> None:
        registry.begin_call(call(), 1.0)
        registry.end("w", 2.0)
        workflow = registry.begin_call(call(), 3.0)
        assert workflow.running == 2
        registry.end_call(call(), 4.0)
        assert (workflow.state, workflow.running) == (State.ACTIVE, 1)
        registry.end_call(call(), 5.0)
        assert workflow.state is State.IDLE

    def test_take_ended_reports_each_end_once_and_in_order(self, registry: WorkflowRegistry) -> None:
        for workflow in ("a", "b"):
            run(registry, workflow, 1.0)
        registry.end("b", 2.0)
        registry.end("a", 3.0)
        assert registry.take_ended() == ["b", "a"]
        assert registry.take_ended() == []
        run(registry, "a", 4.0, final=True)
        assert registry.take_ended() == ["a"]

    def test_the_end_of_a_call_nobody_knows_is_harmless(self, registry: WorkflowRegistry) -> None:
        registry.end_call(call("nobody", final=True), 1.0)
        assert (len(registry), registry.take_ended()) == (0, [])
        run(registry, "w", 1.0)
        registry.end_call(call(), 2.0)
        assert known(registry).running == 0

    def test_the_newest_parent_tenant_and_priority_are_kept(self, registry: WorkflowRegistry) -> None:
        first = RequestIdentity("w", "a", parent="p", priority=0, tenant="t", source="header")
        registry.begin_call(first, 1.0)
        registry.begin_call(RequestIdentity("w", "b", source="user"), 2.0)
        workflow = registry.begin_call(dataclasses.replace(first, parent="q"), 3.0)
        assert (workflow.parent, workflow.priority, workflow.tenant, workflow.source) == ("q", 0, "t", "header")


class TestIdleTimeout:
    def test_it_counts_from_the_end_of_the_last_call(self, registry: WorkflowRegistry) -> None:
        registry.begin_call(call(), 0.0)
        registry.end_call(call(), 100.0)
        registry.expire(100.0 + TIMEOUT_S - 0.1)
        assert known(registry).state is State.IDLE
        registry.expire(100.0 + TIMEOUT_S)
        assert known(registry).end_reason is EndReason.IDLE_TIMEOUT
        assert known(registry).ended == 100.0 + TIMEOUT_S

    def test_a_workflow_with_a_running_call_never_expires(self, registry: WorkflowRegistry) -> None:
        registry.begin_call(call(), 0.0)
        for now in range(0, 1000, 7):
            registry.expire(float(now))
        assert known(registry).state is State.ACTIVE
        registry.end_call(call(), 1000.0)
        registry.expire(1000.0 + TIMEOUT_S - 0.1)
        assert known(registry).state is State.IDLE

    def test_a_long_call_does_not_keep_others_from_expiring(self, registry: WorkflowRegistry) -> None:
        registry.begin_call(call("long"), 0.0)
        run(registry, "short", 1.0)
        registry.expire(1.0 + TIMEOUT_S)
        assert registry.take_ended() == ["short"]

    def test_ended_workflows_do_not_expire_again(self, registry: WorkflowRegistry) -> None:
        run(registry, "w", 0.0, final=True)
        registry.expire(1000.0)
        assert known(registry).end_reason is EndReason.FINAL
        assert registry.take_ended() == ["w"]


class TestLimits:
    def test_what_ended_first_is_forgotten_first(self, registry: WorkflowRegistry) -> None:
        for workflow in ("a", "b", "c"):
            run(registry, workflow, 1.0)
        registry.end("c", 2.0)
        registry.end("b", 3.0)
        registry.take_ended()
        run(registry, "d", 4.0)
        assert ids(registry) == ["a", "d", "b"]
        assert registry.take_ended() == []

    def test_then_the_longest_idle_is_ended_and_forgotten(self, registry: WorkflowRegistry) -> None:
        registry.begin_call(call("running"), 0.0)
        for workflow in ("a", "b"):
            run(registry, workflow, 1.0)
        run(registry, "a", 2.0)
        oldest = known(registry, "b")
        run(registry, "c", 3.0)
        assert ids(registry) == ["running", "a", "c"]
        assert oldest.end_reason is EndReason.LIMIT
        assert registry.take_ended() == ["b"]

    def test_running_ones_are_never_forgotten(self, registry: WorkflowRegistry) -> None:
        for n in range(5):
            registry.begin_call(call(f"w{n}"), float(n))
        assert len(registry) == 5
        for n in range(5):
            registry.end_call(call(f"w{n}"), 10.0)
        run(registry, "new", 11.0)
        assert ids(registry) == ["w3", "w4", "new"]
        assert registry.take_ended() == ["w0", "w1", "w2"]

    def test_an_ended_one_with_a_running_call_is_not_forgotten(self, registry: WorkflowRegistry) -> None:
        """Else the end of that call would be taken for the end of a call of a later namesake."""
        registry.begin_call(call(), 0.0)
        registry.end("w", 1.0)
        for n in range(3):
            run(registry, f"other{n}", 2.0, final=True)
        workflow = registry.begin_call(call(), 3.0)
        registry.end_call(call(), 4.0)
        assert workflow.state is State.ACTIVE

    def test_agents_of_a_workflow_are_bounded_and_none_goes_uncounted(self, registry: WorkflowRegistry) -> None:
        for n in range(MAX_AGENTS_PER_WORKFLOW + 50):
            registry.begin_call(call(agent=f"a{n}"), 0.0)
        registry.begin_call(call(agent="a0"), 0.0)
        agents = known(registry).agents
        assert len(agents) == MAX_AGENTS_PER_WORKFLOW + 1
        assert (agents[OTHER_AGENTS], agents["a0"]) == (50, 2)
        assert sum(agents.values()) == known(registry).calls


class RegistryMachine(RuleBasedStateMachine):
    """The registry against a dictionary of records in which everything is looked for by brute force."""

    LIMIT = 4
    workflows = st.sampled_from("abcdefg")

    def __init__(self) -> None:
        super().__init__()
        self.registry = WorkflowRegistry(TIMEOUT_S, self.LIMIT)
        self.model: dict[str, Workflow] = {}
        self.touched: dict[str, int] = {}
        self.calls: list[RequestIdentity] = []
        self.ended: list[str] = []
        self.now, self.clock = 0.0, 0

    def _touch(self, workflow: Workflow, seen: bool = True) -> None:
        self.clock += 1
        self.touched[workflow.id] = self.clock
        if seen:
            workflow.last_seen = self.now

    def _end(self, workflow: Workflow, reason: EndReason) -> None:
        if workflow.ended is None:
            workflow.ended, workflow.end_reason = self.now, reason
            self._touch(workflow, seen=False)
            self.ended.append(workflow.id)

    def _forget_one(self) -> bool:
        quiet = [workflow for workflow in self.model.values() if not workflow.running]
        if not quiet:
            return False
        over = min(quiet, key=lambda workflow: (workflow.ended is None, self.touched[workflow.id]))
        self._end(over, EndReason.LIMIT)
        del self.model[over.id]
        return True

    @rule(name=workflows, agent=st.sampled_from("xy"), final=st.booleans())
    def begin(self, name: str, agent: str, final: bool) -> None:
        identity = call(name, agent, final)
        new = name not in self.model
        if new:
            while len(self.model) >= self.LIMIT and self._forget_one():
                pass
            self.model[name] = Workflow(name, self.now, self.now, identity.source)
        workflow = self.model[name]
        workflow.ended = workflow.end_reason = None
        workflow.calls += 1
        workflow.running += 1
        workflow.agents[agent] = workflow.agents.get(agent, 0) + 1
        workflow.current_agent = agent
        self._touch(workflow)
        self.calls.append(identity)
        assert self.registry.begin_call(identity, self.now) == workflow
        if new and len(self.registry) > self.LIMIT:
            assert all(workflow.running for workflow in self.registry.workflows())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end_call(self, data: st.DataObject) -> None:
        identity = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        workflow = self.model[identity.workflow]  # a workflow with a call running is never forgotten
        workflow.running -= 1
        workflow.last_seen = self.now
        if workflow.ended is None:
            self._touch(workflow)
        if identity.final:
            self._end(workflow, EndReason.FINAL)
        self.registry.end_call(identity, self.now)

    @rule(name=workflows)
    def end(self, name: str) -> None:
        if name in self.model:
            self._end(self.model[name], EndReason.REQUESTED)
        assert self.registry.end(name, self.now) == self.model.get(name)

    @rule()
    def expire(self) -> None:
        live = [workflow for workflow in self.model.values() if workflow.ended is None]
        due = [workflow for workflow in live if workflow.last_seen <= self.now - TIMEOUT_S]
        due.sort(key=lambda workflow: self.touched[workflow.id])
        for workflow in due:
            if not workflow.running:
                self._end(workflow, EndReason.IDLE_TIMEOUT)
        for workflow in due:
            if workflow.running:
                self._touch(workflow)
        self.registry.expire(self.now)

    @rule(seconds=st.sampled_from([0.0, 1.0, TIMEOUT_S / 2, TIMEOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take_ended(self) -> None:
        assert self.registry.take_ended() == self.ended
        self.ended = []

    @invariant()
    def the_same_workflows_in_the_same_order(self) -> None:
        records = sorted(self.model.values(), key=lambda record: (record.ended is not None, self.touched[record.id]))
        assert list(self.registry.workflows()) == records
        assert len(self.registry) == len(records)
        for state in State:
            assert list(self.registry.workflows(state)) == [record for record in records if record.state is state]
            assert self.registry.counts()[state] == sum(record.state is state for record in records)
        for name in "abcdefg":
            assert (name in self.registry) == (name in self.model)

    @invariant()
    def running_calls_are_those_that_run(self) -> None:
        assert sum(workflow.running for workflow in self.registry.workflows()) == len(self.calls)

    @invariant()
    def live_workflows_are_in_the_order_of_last_seen(self) -> None:
        seen = [workflow.last_seen for workflow in self.registry.workflows() if workflow.state is not State.ENDED]
        assert all(before <= after for before, after in pairwise(seen))


TestAgainstTheModel = RegistryMachine.TestCase
TestAgainstTheModel.settings = settings(max_examples=150, stateful_step_count=40)
