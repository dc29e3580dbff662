"""The parts of `forecache bench cache-cost` that need no engine: ledger, victim order, learning on a hand-made tree."""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable

from cache_actor.policies.reuse import Reuse
from cache_actor.policies.reuse_table import MAX_CELLS, Situation
from serving.benchmark.budgets import Figures
from serving.benchmark.contestants import contestant
from serving.benchmark.hand_made import AGENTS, HandMade
from serving.benchmark.replay.costs import load_costs
from serving.benchmark.replay.engine import EngineShape
from serving.benchmark.replay.run import Replay
from serving.benchmark.replay.setup import Setup
from serving.benchmark.victim_run import VictimRun
from serving.benchmark.workloads import Lanes, make_workload
from serving.sglang_plugin.entries import Entry, Owner
from serving.sglang_plugin.reuse import Learning
from serving.sglang_plugin.uses import Use

PLANS = 10
VICTIMS = 5_000
SMALL, LARGE = 1_000, 100_000

Progress = Callable[[str], None]


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
        made.lowered(list(owner.nodes()))
        learning.used(node for node in chain if node.entry.use is not use)
        made.ledger.touch(chain[-1], owner, use)
        made.lowered(chain)
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
