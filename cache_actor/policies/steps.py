"""KVFlow (arXiv 2507.07400, the paper's text): the application's step graph says how soon each agent runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cache_actor.policies.base import VALUE_ONE, Combine, EvictionPolicy, Key, NodeFacts, after_retired, register


@register
@dataclass(frozen=True, slots=True)
class Steps(EvictionPolicy):
    """Retired nodes first, then the workflows' own suffixes, then agents' fixed parts, the farthest agent first.

    A node's value is its urgency (`steps_table`), that of the soonest of its agents. Only a shared node carries it.
    A known node that is not shared is some workflow's own suffix: all of them go before everything else that is not
    retired. A known shared node of value 0 is one whose agents no active workflow can reach any more: it goes next.
    A node of which nothing is known, shared or not, stands at one constant urgency, by recency.

    unknown_value: that urgency; the default is the urgency of an agent that is one step away.
    """

    name = "steps"
    combine = Combine.MAX

    unknown_value: float = 0.5

    def __post_init__(self) -> None:
        self._check_number("unknown_value", 0, 1)

    def key(self, node: NodeFacts, now: float) -> Key:
        if not node.known:
            return after_retired(node, self.unknown_value * VALUE_ONE)
        return after_retired(node, node.value if node.shared else -1.0)


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The order in which a workflow's agents run, as its application declares it.

    successors: the agents that may follow each agent.
    joins_all: the agents that wait for all their predecessors (AND-join); every other agent waits for any of them
        (OR-join).

    Raises:
        ValueError: an AND-join that no agent leads to.
    """

    successors: Mapping[str, Sequence[str]]
    joins_all: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        followers = {agent for row in self.successors.values() for agent in row}
        if lost := sorted(self.joins_all - followers):
            raise ValueError(
                f"joins_all names {', '.join(map(repr, lost))}, which no agent leads to; "
                "add the edge to successors or remove the name"
            )

    def steps_to_execution(self, running: Iterable[str]) -> dict[str, int]:
        """How many steps away each agent is from the `running` ones, which are 0 steps away.

        OR-join: the smallest of its predecessors plus 1; AND-join: the largest plus 1. An AND-join waits only for
        predecessors that can still run before it: not for those that are behind the running agents, nor for those
        that only it leads to (a loop's way back). Agents that cannot be reached, and AND-joins that wait for each
        other, are absent.
        """
        starts = list(dict.fromkeys(running))
        waits_for = {agent: self._open_predecessors(agent, starts) for agent in self.joins_all}
        steps = dict.fromkeys(starts, 0)
        # Breadth first: agents are settled by ascending steps, so the last predecessor of a join is its largest.
        queue = deque(starts)
        while queue:
            agent = queue.popleft()
            for follower in dict.fromkeys(self.successors.get(agent, ())):
                if follower in steps:
                    continue
                if follower in waits_for:
                    waits_for[follower].discard(agent)
                    if waits_for[follower]:
                        continue
                steps[follower] = steps[agent] + 1
                queue.append(follower)
        return steps

    def _open_predecessors(self, join: str, starts: Iterable[str]) -> set[str]:
        """The predecessors of `join` that are reachable from `starts` on a way that does not pass `join`."""
        seen = set(starts) - {join}
        queue = deque(seen)
        while queue:
            for follower in self.successors.get(queue.popleft(), ()):
                if follower != join and follower not in seen:
                    seen.add(follower)
                    queue.append(follower)
        return {agent for agent in seen if join in self.successors.get(agent, ())}


def steps_table(graph: StepGraph, running: Iterable[str]) -> dict[str, int]:
    """The urgency of each agent, VALUE_ONE // (1 + steps to its execution); unreachable agents are absent."""
    return {agent: VALUE_ONE // (1 + steps) for agent, steps in graph.steps_to_execution(running).items()}
