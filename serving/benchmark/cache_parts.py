"""The parts of `forecache bench cache-cost` that need no engine: ledger, victim order and learning on a hand-made tree.

It has the ledger and the queues that `ForecacheCache` puts beside SGLang's.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from cache_actor.policies import VALUE_ONE, make_policy
from cache_actor.policies.base import Key
from cache_actor.policies.reuse import Reuse
from cache_actor.policies.reuse_table import MAX_CELLS, Situation
from serving.benchmark.budgets import Figures
from serving.benchmark.contestants import contestant
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay, Setup
from serving.benchmark.workloads import Lanes, make_workload
from serving.sglang_plugin.ledger import Entry, Ledger, Owner
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.reuse import Learning
from serving.sglang_plugin.uses import Use

PLANS = 10
VICTIMS = 5_000
SMALL, LARGE = 1_000, 100_000
AGENTS = 5
AGENT_NAMES = tuple(f"agent-{number}" for number in range(AGENTS))
# Agents of other kinds of workflow that the engine has met: Python keeps ints below 257 for nothing, masks are larger.
OTHER_AGENTS = 40

Progress = Callable[[str], None]


class _Key:
    """A node's tokens; like SGLang's `RadixKey` it computes its length in Python."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens


class Node:
    """A node of the hand-made tree: what the ledger asks of one."""

    __slots__ = ("entry", "id", "key", "last_access_time", "parent")

    def __init__(self, number: int, parent: Node | None, last_access_time: float) -> None:
        self.id = number
        self.parent = parent
        self.key = _Key(16)
        self.last_access_time = last_access_time
        self.entry = Entry()


def grow(chains: int, depth: int) -> list[list[Node]]:
    """Chains of `depth` nodes under one root, each from its top to its leaf."""
    root = Node(0, None, 0)
    tree: list[list[Node]] = []
    for number in range(chains):
        chain: list[Node] = []
        for level in range(depth):
            chain.append(Node(number * depth + level + 1, chain[-1] if chain else root, number))
        tree.append(chain)
    return tree


class HandMade:
    """Ledger and queues over a hand-made tree, tied to each other as `ForecacheCache` does it.

    Each workflow owns `AGENTS` chains of `depth` nodes, one an agent; the next agent has used its upper half, too.
    `sharers` workflows own the same chains.
    """

    def __init__(self, workflows: int, depth: int, sharers: int = 1, policy: str = "lookahead") -> None:
        self.rng = random.Random(0)
        self.policy = make_policy(policy)
        self.learning = Learning(self.policy, lambda tier: 1 << 20) if isinstance(self.policy, Reuse) else None
        self.now = 0.0
        self.names = [f"workflow-{number:08d}-{number:08x}" for number in range(workflows)]
        self.chains = grow(workflows // sharers * AGENTS, depth)
        self.sharers = sharers
        self.ledger = Ledger(self.policy.combine, self.policy.strict, self._lowered, workflows + 1_000)
        for number in range(OTHER_AGENTS):
            self.ledger.bit(f"other-{number}")
        self.bits = [self.ledger.bit(agent) for agent in AGENT_NAMES]
        self.queues = {
            tier: VictimQueue(self._key, self.policy.changes_at, lambda: self.now, tier) for tier in ("device", "host")
        }

    def _key(self, node: Any, now: float) -> Key:
        if self.learning is not None:
            return self.learning.key(self.policy, "device", self.ledger, node, now)
        return self.policy.key(self.ledger.facts(node), now)

    def _lowered(self, nodes: list[Any]) -> None:
        for queue in self.queues.values():
            queue.lowered(nodes)

    def chains_of(self, number: int) -> list[list[Node]]:
        first = number // self.sharers * AGENTS
        return self.chains[first : first + AGENTS]

    def own(self) -> None:
        """Every workflow makes its calls and gets a value table."""
        for number, name in enumerate(self.names):
            self.now += 0.001
            owner = self.ledger.owner(name)
            for agent, chain in enumerate(self.chains_of(number)):
                self.ledger.touch(chain[-1], owner, self.call(owner, agent))
                self.ledger.touch(chain[len(chain) // 2], owner, self.call(owner, (agent + 1) % AGENTS))
            self.ledger.set_table(name, self.table())

    def call(self, owner: Owner, agent: int) -> Use:
        """A call that the workflow makes."""
        owner.calls_as(AGENT_NAMES[agent])
        return Use(self.now, owner.agent, self.bits[agent], owner.calls)

    def add_leaves(self) -> None:
        for chain in self.chains:
            self.queues["device"].add(chain[-1])

    def table(self) -> dict[str, int]:
        return {agent: self.rng.randrange(3 * VALUE_ONE) for agent in AGENT_NAMES}


def touch_us(paths: int = 400, depth: int = 10) -> tuple[float, float]:
    """Microseconds a node to touch a path that its workflow owns already, and one that it comes to own."""
    made = HandMade(paths // AGENTS, depth)
    made.own()
    made.add_leaves()
    newcomers: list[Owner] = []
    for number in range(paths):
        newcomers.append(made.ledger.owner(f"newcomer-{number}"))
        made.ledger.set_table(f"newcomer-{number}", made.table())
    owners = [made.ledger.owners[name] for name in made.names for _ in range(AGENTS)]
    bits = made.bits * (paths // AGENTS)

    def touched(by: list[Owner]) -> float:
        touch, uses = made.ledger.touch, [Use(made.now, bit=bit) for bit in bits]
        start = time.perf_counter()
        for chain, owner, use in zip(made.chains, by, uses, strict=True):
            touch(chain[-1], owner, use)
        return (time.perf_counter() - start) * 1e6 / (paths * depth)

    return touched(owners), touched(newcomers)


def reuse_touch_us(paths: int = 400, depth: int = 10) -> float:
    """Microseconds a node for a call under `reuse`: its path is touched, and all nodes of its workflow are told of.

    A workflow owns as many nodes as five such paths have; a quarter of the leaves is watched.
    """
    made = HandMade(paths // AGENTS, depth, policy="reuse")
    made.own()
    made.add_leaves()
    learning, queue = made.learning, made.queues["device"]
    assert learning is not None
    for chain in made.chains[::4]:
        learning.evicting("device", queue, chain[-1])
    owners = [made.ledger.owners[name] for name in made.names for _ in range(AGENTS)]
    start = time.perf_counter()
    for number, (chain, owner) in enumerate(zip(made.chains, owners, strict=True)):
        use = made.call(owner, number % AGENTS)
        made._lowered(list(made.ledger.nodes_of(owner)))
        learning.used(node for node in chain if node.entry.use is not use)
        made.ledger.touch(chain[-1], owner, use)
        made._lowered(chain)
    queue.first()
    return (time.perf_counter() - start) * 1e6 / (paths * depth)


def learned_kib() -> float:
    """KiB of the tables of both tiers, full."""
    rng = random.Random(0)
    gc.collect()
    tracemalloc.start()
    try:
        made = Learning(Reuse(), lambda tier: 1)
        names = [f"agent-with-a-long-name-{number}" for number in range(200)]
        while any(len(tier.table) < MAX_CELLS - 8 for tier in made.tiers.values()):
            agents = rng.choices(names, k=3)
            first, second, third = agents
            situation = Situation("private", rng.randrange(9), rng.randrange(5), rng.randrange(8), first, second, third)
            for tier in made.tiers.values():
                tier.table.learn(situation, rng.random())
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 1024
    finally:
        tracemalloc.stop()


def reuse_step_percent() -> float:
    """Processor time of `reuse`, its guard and the ledger, in percent of what prefills of 1,000 tokens take on a GPU.

    The real cache under a coding workload, with a third of the room that it wants; the GPU is the modelled H100 with
    Qwen3-14B, and only the tokens that it computes for prompts count for its time.
    """
    workload = make_workload("swe", 0, workflows=24)
    statistics = workload.statistics()
    longest = statistics.longest_prompt + max(call.output_tokens for _, _, call in workload.calls())
    lanes, costs = 12, load_costs("qwen3-14b-h100")
    shape = EngineShape(max(int(lanes * statistics.live_footprint / 3), longest), 0, longest_call=longest)
    replay = Replay(Setup(workload, Lanes(lanes), costs, shape), contestant("reuse-oracle"))
    replay.run()
    steps = replay.record.counters["computed"] / 1000
    return 100 * (replay.record.policy_cpu_s or 0.0) / (steps * costs.prefill([(1000, 0)]))


def update_us(workflows: int = 100, depth: int = 10) -> float:
    """Microseconds to give new values to a workflow that owns 50 nodes, 5 of them leaves in the victim queue.

    Agents' values rise and fall alike, as forecasts do. Median of several plans for all workflows.
    """
    made = HandMade(workflows, depth)
    made.own()
    made.add_leaves()
    plans: list[float] = []
    for _ in range(PLANS):
        tables = [made.table() for _ in made.names]
        start = time.perf_counter()
        for name, table in zip(made.names, tables, strict=True):
            made.ledger.set_table(name, table)
        plans.append((time.perf_counter() - start) * 1e6 / workflows)
    return statistics.median(plans)


class VictimRun:
    """Evictions that go on for long: victims leave, other leaves come, plans bring new values.

    A cycle is the time in which a hundredth of the leaves is evicted and as many are added, and in which a hundredth
    of the workflows gets new values. All of it is the price of the victims.
    """

    def __init__(self, leaves: int, policy: str = "lookahead") -> None:
        self.made = HandMade(leaves * 11 // 10 // AGENTS, depth=2, policy=policy)
        self.made.own()
        everything = [chain[-1] for chain in self.made.chains]
        self.made.rng.shuffle(everything)
        self.spare = everything[leaves:]
        self.queue = self.made.queues["device"]
        for leaf in everything[:leaves]:
            self.queue.add(leaf)
        self.leaves = leaves
        self.accesses = leaves * 2
        self.run(200)

    def victim_us(self, victims: int) -> tuple[float, float]:
        """Microseconds a victim, and milliseconds of the rebuild that comes once in a while."""
        before = len(self.queue._heap)
        seconds, done = self.run(victims)
        left_over = len(self.queue._heap) - before
        start = time.perf_counter()
        self.queue.rebuild()
        rebuild = time.perf_counter() - start
        # Stale items are cleared away when there are three of them to a leaf: each bears its part of that.
        return (seconds + rebuild * left_over / (3 * self.leaves)) * 1e6 / done, rebuild * 1e3

    def run(self, victims: int) -> tuple[float, int]:
        """Seconds that at least so many victims took, and how many they were."""
        made, queue, spare, ledger = self.made, self.queue, self.spare, self.made.ledger
        learning = made.learning
        a_cycle = self.leaves // 100
        cycles = -(-victims // a_cycle)
        seconds = 0.0
        for _ in range(cycles):
            places = [made.rng.randrange(len(spare)) for _ in range(a_cycle)]
            names = made.rng.sample(made.names, max(1, len(made.names) // 100))
            tables = {name: made.table() for name in names}
            start = time.perf_counter()
            for place in places:
                victim: Any = queue.first()
                if learning is not None:
                    learning.evicting("device", queue, victim)
                    learning.left(victim)
                    learning.computed(len(victim.key))
                    learning.used([spare[place]])
                queue.discard(victim)
                leaf, spare[place] = spare[place], victim
                self.accesses += 1
                leaf.last_access_time = self.accesses
                queue.add(leaf)
            for name, table in tables.items():
                ledger.set_table(name, table)
            seconds += time.perf_counter() - start
        return seconds, cycles * a_cycle


def ledger_bytes_per_node(nodes: int = 10_000, depth: int = 10, sharers: int = 4) -> float:
    """Bytes of entries, owners, tips and tables, a node, when each of `nodes` has four owners that own 50 nodes."""
    made = HandMade(nodes // (AGENTS * depth) * sharers, depth, sharers)
    made.names.clear()
    gc.collect()
    tracemalloc.start()
    try:
        for chain in made.chains:
            for node in chain:
                node.entry = Entry()
        made.names += [f"workflow-{n:08d}-{n:08x}" for n in range(nodes // (AGENTS * depth) * sharers)]
        made.own()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / nodes
    finally:
        tracemalloc.stop()


def measure_parts(rounds: int, progress: Progress) -> Figures:
    """The figures that need no engine: medians over `rounds`, in some seconds."""
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        progress(f"ledger: round {number + 1} of {rounds}")
        owned, new = touch_us()
        samples["touch_us"].append(max(owned, new))
        samples["touch_owned_us"].append(owned)
        samples["touch_new_us"].append(new)
        samples["update_50_nodes_us"].append(update_us())
    progress("ledger: memory")
    samples["ledger_bytes_per_node"].append(ledger_bytes_per_node())
    progress("victims: growing trees")
    runs = [VictimRun(SMALL), VictimRun(LARGE)]
    for number in range(rounds):
        progress(f"victims: round {number + 1} of {rounds}")
        (small, _), (large, rebuild) = [run.victim_us(VICTIMS) for run in runs]
        samples["victim_us_1k"].append(small)
        samples["victim_us_100k"].append(large)
        samples["victim_growth"].append(large / small)
        samples["victim_rebuild_ms_100k"].append(rebuild)
    progress("reuse: growing trees")
    runs = [VictimRun(SMALL, "reuse"), VictimRun(LARGE, "reuse")]
    for number in range(rounds):
        progress(f"reuse: round {number + 1} of {rounds}")
        samples["reuse_touch_us"].append(reuse_touch_us())
        for name, run in zip(("reuse_victim_us_1k", "reuse_victim_us_100k"), runs, strict=True):
            samples[name].append(run.victim_us(VICTIMS)[0])
    samples["reuse_learned_kib"].append(learned_kib())
    progress("reuse: a replay")
    samples["reuse_step_percent"].append(reuse_step_percent())
    return {name: statistics.median(values) for name, values in samples.items()}
