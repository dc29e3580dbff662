"""`forecache bench cache-cost`: what the cache's ledger and victim order cost, alone and inside an engine.

The small figures come from a hand-made tree with the ledger and the queues that `ForecacheCache` puts beside SGLang's;
the ratios from two engines side by side, one with Forecache's cache and one with SGLang's own, which take turns.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from cache_actor.policies import VALUE_ONE, make_policy
from cache_actor.policies.base import Key
from serving.benchmark.engine_process import EngineProcess, Job
from serving.config import AppConfig, CacheConfig, ModelConfig, RandomQwen3Config
from serving.sglang_plugin.ledger import Entry, Ledger, Owner
from serving.sglang_plugin.order import VictimQueue
from serving.sglang_plugin.uses import Use

AT_ONCE = 32
TURNS = 4
PLANS = 10
VICTIMS = 5_000
SINGLE_CALLS = 80
SMALL, LARGE = 1_000, 100_000
AGENTS = 5
# Agents of other kinds of workflow that the engine has met: Python keeps ints below 257 for nothing, masks are larger.
OTHER_AGENTS = 40
# An order kept up to date is O(log n); what is beyond it is a processor's cache that 100,000 leaves do not fit in.
GROWTH_BUDGET = 1.5 * math.log(LARGE) / math.log(SMALL)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a figure may be: at most `limit`, or at least."""

    name: str
    unit: str
    limit: float
    at_least: bool = False

    def met(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit


BUDGETS = (
    Budget("throughput_ratio", "× stock", 0.98, at_least=True),
    Budget("throughput_ratio_hicache", "× stock", 0.98, at_least=True),
    Budget("ttft_ratio", "× stock", 1.02),
    Budget("ttft_ratio_hicache", "× stock", 1.02),
    Budget("touch_us", "µs a node", 2),
    Budget("update_50_nodes_us", "µs", 20),
    Budget("victim_us_1k", "µs", 50),
    Budget("victim_us_100k", "µs", 50),
    Budget("victim_growth", "× from 1k to 100k", GROWTH_BUDGET),
    Budget("ledger_bytes_per_node", "bytes", 400),
)

Progress = Callable[[str], None]
Figures = dict[str, float]


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

    def __init__(self, workflows: int, depth: int, sharers: int = 1) -> None:
        self.rng = random.Random(0)
        self.policy = make_policy("lookahead")
        self.now = 0.0
        self.names = [f"workflow-{number:08d}-{number:08x}" for number in range(workflows)]
        self.chains = grow(workflows // sharers * AGENTS, depth)
        self.sharers = sharers
        self.ledger = Ledger(self.policy.combine, self.policy.strict, self._lowered, workflows + 1_000)
        for number in range(OTHER_AGENTS):
            self.ledger.bit(f"other-{number}")
        self.bits = [self.ledger.bit(agent) for agent in _agents()]
        self.queues = {
            tier: VictimQueue(self._key, self.policy.changes_at, lambda: self.now, tier) for tier in ("device", "host")
        }

    def _key(self, node: Any, now: float) -> Key:
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
                self.ledger.touch(chain[-1], owner, Use(self.now, bit=self.bits[agent]))
                self.ledger.touch(chain[len(chain) // 2], owner, Use(self.now, bit=self.bits[(agent + 1) % AGENTS]))
            self.ledger.set_table(name, self.table())

    def add_leaves(self) -> None:
        for chain in self.chains:
            self.queues["device"].add(chain[-1])

    def table(self) -> dict[str, int]:
        return {agent: self.rng.randrange(3 * VALUE_ONE) for agent in _agents()}


def _agents() -> list[str]:
    return [f"agent-{number}" for number in range(AGENTS)]


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

    def __init__(self, leaves: int) -> None:
        self.made = HandMade(leaves * 11 // 10 // AGENTS, depth=2)
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
    return {name: statistics.median(values) for name, values in samples.items()}


def measure_engines(rounds: int, requests: int, hicache: bool, progress: Progress) -> Figures:
    """Throughput and time to first token, forecache over stock: medians of the rounds' ratios.

    Raises:
        EngineProcessError: an engine did not start or ended.
    """
    kind = "with HiCache" if hicache else "without HiCache"
    progress(f"engines {kind}: starting two")
    samples: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        configs = [_config(backend, hicache, requests) for backend in ("forecache", "sglang")]
        engines = [stack.enter_context(EngineProcess(config)) for config in configs]
        for engine in engines:
            engine.ready()
        for number in range(rounds + 1):
            progress(f"engines {kind}: " + (f"round {number} of {rounds}" if number else "warming up"))
            ratios = _round(engines[0], engines[1], number, requests)
            for name, ratio in ratios.items() if number else ():
                samples[name].append(ratio)
    suffix = "_hicache" if hicache else ""
    figures = {f"{name}_ratio{suffix}": statistics.median(ratios) for name, ratios in samples.items()}
    return figures | {f"{name}_spread{suffix}": max(ratios) - min(ratios) for name, ratios in samples.items()}


def _round(ours: EngineProcess, stock: EngineProcess, number: int, requests: int) -> Figures:
    """Ratios of one round. The engines take turns every few calls, and at who goes first: what else runs hits both."""
    seconds: dict[EngineProcess, float] = defaultdict(float)
    cpu: dict[EngineProcess, float] = defaultdict(float)
    ttft: dict[EngineProcess, float] = defaultdict(float)
    for turn in range(TURNS):
        pair = (ours, stock) if (turn + number) % 2 else (stock, ours)
        seed = 2 * (number * TURNS + turn)
        for engine in pair:
            result = engine.run(Job(seed, max(1, requests // TURNS), AT_ONCE))
            seconds[engine] += result.seconds
            cpu[engine] += result.cpu_seconds
        for engine in pair:
            ttft[engine] += engine.run(Job(seed + 1, SINGLE_CALLS // TURNS, at_once=1)).ttft_s
    return {
        "throughput": seconds[stock] / seconds[ours],
        "ttft": ttft[ours] / ttft[stock],
        "cpu": cpu[ours] / cpu[stock],
    }


def _config(backend: Any, hicache: bool, requests: int) -> AppConfig:
    engine: dict[str, Any] = {
        "max_total_tokens": requests * 256 + 8192,  # no pressure: every call of a job stays
        "max_running_requests": AT_ONCE,
        "context_length": 1500,
        "dtype": "float32",
    }
    if hicache:
        engine |= {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
    tiny = RandomQwen3Config(hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32)
    return AppConfig(
        model=ModelConfig(source="random-qwen3", name="random", random=tiny),
        cache=CacheConfig(backend=backend, policy="lookahead"),
        engine=engine,
    )


def measure(rounds: int, requests: int, engines: bool, progress: Progress) -> Figures:
    """All figures, or without engines those that need none, in the order of `BUDGETS` and then the rest.

    Raises:
        EngineProcessError: an engine did not start or ended.
    """
    figures = measure_parts(rounds, progress)
    if engines:
        for hicache in (False, True):
            figures |= measure_engines(rounds, requests, hicache, progress)
    names = [budget.name for budget in BUDGETS if budget.name in figures]
    return {name: figures[name] for name in [*names, *(name for name in figures if name not in names)]}


def missed(figures: Figures) -> list[str]:
    """The names of the figures that are beyond their budgets."""
    return [b.name for b in BUDGETS if b.name in figures and not b.met(figures[b.name])]


def print_table(figures: Figures, console: Console) -> None:
    """The figures for people, with the budgets beside them."""
    table = Table("figure", "measured", "budget", "unit", "")
    budgets = {budget.name: budget for budget in BUDGETS}
    for name, figure in figures.items():
        budget = budgets.get(name)
        if budget is None:
            table.add_row(name, f"{figure:.3g}", style="dim")
            continue
        limit = f"{'≥' if budget.at_least else '≤'} {budget.limit:.3g}"
        verdict = "[green]met[/]" if budget.met(figure) else "[red]missed[/]"
        table.add_row(name, f"{figure:.3g}", limit, budget.unit, verdict)
    console.print(table)
