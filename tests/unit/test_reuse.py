"""Learning in the cache: what becomes of a watched node, that it learns what is used again, the same on all ranks."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from cache_actor.messages import MAX_MESSAGE_BYTES, Told, encode
from cache_actor.policies import VALUE_ONE, make_policy
from cache_actor.policies.reuse import Reuse
from cache_actor.policies.reuse_table import Situation
from serving.benchmark.bare_cache import BareCache, make_cache
from serving.sglang_plugin.dump import dump
from serving.sglang_plugin.entries import UNNAMED, Entry, Owner
from serving.sglang_plugin.reuse import MAX_WATCHES, Learning, situation_of
from serving.sglang_plugin.settings import CacheSettings
from serving.sglang_plugin.uses import Use

CAPACITY = 1000


class Node:
    def __init__(self, number: int) -> None:
        self.id = number
        self.entry = Entry()


class Queue:
    """Has nobody but the victim."""

    def sample(self, count: int, rng: random.Random) -> list[Any]:
        return []


def learning(**parameters: Any) -> Learning:
    return Learning(Reuse(**parameters), lambda tier: CAPACITY)


def watch(made: Learning, node: Node, tier: str = "device") -> None:
    made.evicting(tier, Queue(), node)  # type: ignore[arg-type]


def labels(made: Learning, tier: str = "device") -> list[float]:
    """The mean label of what was learned, if there is anything."""
    return [one.mean for one in made.explain(tier, Entry())[:1]]


class TestLabels:
    @pytest.mark.parametrize("tokens", [0, 10, 500, 1500])
    def test_a_use_counts_by_what_has_come_in_until_then(self, tokens: int) -> None:
        made, node = learning(), Node(1)
        watch(made, node)
        made.computed(tokens)
        assert labels(made) == []
        made.used([node])
        assert labels(made) == [pytest.approx(math.exp(-tokens / CAPACITY))]
        made.used([node])
        assert made.tiers["device"].labels == 1, "a watch has one end"

    def test_residence_stretches_the_time(self) -> None:
        made, node = learning(residence=2.0), Node(1)
        watch(made, node)
        made.computed(1000)
        made.used([node])
        assert labels(made) == [pytest.approx(math.exp(-0.5))]

    def test_what_comes_back_after_it_left_the_tree_counts_the_same(self) -> None:
        made, node = learning(), Node(1)
        watch(made, node)
        gone = made.left(node)
        made.computed(100)
        made.used([node])
        assert labels(made) == []
        made.returned(gone)
        assert labels(made) == [pytest.approx(math.exp(-0.1))]

    def test_what_retires_or_has_had_its_time_is_not_used_again(self) -> None:
        made = learning()
        watch(made, Node(1))
        made.retired([Node(1)])
        watch(made, Node(2))
        made.computed(2 * CAPACITY + 1)
        watch(made, Node(3))
        assert (made.tiers["device"].labels, labels(made)) == (2, [0.0])

    def test_both_halves_of_a_split_node_are_watched(self) -> None:
        made, lower, upper = learning(), Node(1), Node(2)
        watch(made, lower)
        made.split(upper, lower)
        made.used([upper])
        made.retired([lower])
        assert (made.tiers["device"].labels, labels(made)) == (2, [0.5])

    def test_with_too_many_watched_no_more_are_and_none_is_given_up(self) -> None:
        made = learning()
        nodes = [Node(number) for number in range(MAX_WATCHES + 10)]
        for node in nodes:
            watch(made, node)
        assert (made.tiers["device"].watches, made.tiers["device"].labels) == (MAX_WATCHES, 0)
        made.used(nodes)
        assert made.tiers["device"].labels == MAX_WATCHES
        watch(made, nodes[-1])
        assert made.tiers["device"].watches == 1

    def test_tiers_learn_apart_and_loads_fill_the_device_alone(self) -> None:
        made, node = learning(), Node(1)
        watch(made, node)
        watch(made, node, "host")
        made.loaded(1000)
        made.used([node])
        assert labels(made, "device") == [pytest.approx(math.exp(-1))]
        assert labels(made, "host") == [1.0]

    def test_after_the_tree_was_emptied_nothing_is_learned_of_what_was_in_it(self) -> None:
        made, node = learning(), Node(1)
        watch(made, node)
        gone = made.left(node)
        watch(made, Node(2))
        made.forget_watches()
        made.returned(gone)
        made.used([Node(2)])
        assert labels(made) == []


class TestSituation:
    def test_of_a_private_node(self) -> None:
        owner, entry = Owner("w"), Entry()
        for agent in ("planner", "coder", "tester"):
            owner.calls_as(agent)
        entry.owners[owner] = 2
        entry.used(Use(0.0, "coder", 2, step=2), generated=False)
        assert situation_of(entry) == Situation("private", 1, 1, None, "tester", "coder", "coder", 0)
        owner.table = {1: VALUE_ONE}
        assert situation_of(entry).forecast == 0, "its agent has no value"
        owner.table = {2: VALUE_ONE}
        assert situation_of(entry).forecast == 5

    def test_of_nodes_that_nobody_or_several_have(self) -> None:
        entry = Entry()
        entry.past = 2
        assert situation_of(entry)[:2] == ("dormant", 0)
        entry.past |= UNNAMED
        assert situation_of(entry)[:2] == ("unnamed", 0)
        entry.owners = {Owner("w"): 1, Owner("v"): 1}
        assert situation_of(entry)[:2] == ("shared", 2)

    def test_what_was_only_generated_is_told_from_what_was_in_a_prompt(self) -> None:
        entry = Entry()
        first, second = Use(0.0), Use(1.0)
        entry.used(first, generated=True)
        entry.used(first, generated=True)
        assert entry.uses == 0
        entry.used(second, generated=True)
        assert entry.uses == 1


def unique(number: int, tokens: int) -> list[int]:
    return [1_000_000 + number * 100 + place for place in range(tokens)]


def looping(policy: str, rounds: int = 400, **parameters: Any) -> int:
    """An agent's prompt of 60 tokens comes again after 25 others of 20 that do not, in a pool of 400. Tokens computed
    in the second half."""
    bare = BareCache(400, policy, **parameters)
    computed = 0
    for number in range(rounds):
        tokens = bare.call(unique(number, 20), "w", "once")
        if number % 25 == 0:
            tokens += bare.call(unique(10_000, 60), "w", "again")
        computed += tokens if number >= rounds // 2 else 0
    return computed


class TestInTheCache:
    def test_it_keeps_what_recency_loses(self) -> None:
        everything = 200 * 20
        assert looping("lru") == looping("lifecycle") == everything + 8 * 60
        assert looping("reuse") == everything

    def test_what_an_engine_knows_is_shown_with_its_reasons(self) -> None:
        bare = BareCache(400, "reuse")
        for number in range(100):
            bare.call(unique(number, 20), "w", "once")
        rows = dump(bare.cache)["nodes"]
        chances = [row["chance"]["device"] for row in rows if row["chance"]]
        assert chances
        assert all(0 <= one["chance"] < 0.2 for one in chances)
        why = max((one["evidence"][-1] for one in chances), key=lambda one: len(one["situation"]))
        assert why["situation"]["last_agent"] == "once"
        assert why["observations"] > 1

    def test_an_emptied_cache_keeps_what_it_learned_and_nothing_of_what_it_held(self) -> None:
        bare = BareCache(400, "reuse")
        for number in range(60):
            bare.call(unique(number, 20), "w", "once")
        cache = bare.cache
        assert cache.learning is not None
        learned = cache.learning.state()
        cache.followed = make_policy("lru")
        bare.cache.reset()
        assert cache.learning.state() == learned
        assert cache.learning.tiers["device"].watches == 0
        assert (cache.shadows, cache.followed) == (None, cache.policy)

    def test_ranks_whose_sets_iterate_differently_evict_the_same(self) -> None:
        def history() -> list[int]:
            rng = random.Random(5)
            bare = BareCache(600, "reuse")
            ballast = [object() for _ in range(rng.randrange(1, 1000))]  # other addresses, other hashes
            held = []
            for number in range(600):
                workflow = f"w{rng.randrange(6)}"
                prompt = unique(rng.randrange(60), rng.randrange(10, 60))
                held.append(bare.call(prompt, workflow, rng.choice(["a", "b", "c"])))
                if number % 50 == 49:
                    bare.cache.end_workflow(f"w{rng.randrange(6)}")
                if number % 7 == 0:
                    ballast.append(object())
            return held

        assert history() == history()


class TestState:
    def test_a_new_engine_goes_on_from_another_s(self, tmp_path: Path) -> None:
        def second_half(learned_file: str) -> tuple[int, Any]:
            settings = CacheSettings(policy="reuse", prefetch_reserve_tokens=0, learned_file=learned_file)
            bare = BareCache(400)
            bare.cache = make_cache(400, 0, settings, lambda: bare.now)
            bare.allocator = bare.cache.token_to_kv_pool_allocator
            computed = 0
            for number in range(60):
                computed += bare.call(unique(number, 20), "w", "once")
                if number % 25 == 0:
                    computed += bare.call(unique(10_000, 60), "w", "again")
            return computed, bare.cache.learning

        fresh, learned = second_half("")
        file = tmp_path / "learned.json"
        file.write_text(json.dumps(learned.state()))
        taught, _ = second_half(str(file))
        assert taught <= fresh
        assert second_half(str(tmp_path / "absent"))[0] == fresh
        file.write_text("{")
        assert second_half(str(file))[0] == fresh

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 99}, "version is not 1"),
            ({"features": ["moon"]}, r"learned from the features \['moon'\]"),
            ({"tiers": {"device": []}}, "tiers device, host"),
            ({"tiers": {"device": [[["private"], 2.0, 1.0]], "host": [1]}}, "no cell"),
        ],
    )
    def test_a_state_that_does_not_fit_is_refused_with_the_reason(self, change: dict[str, Any], message: str) -> None:
        made = learning()
        before = made.state()
        with pytest.raises(ValueError, match=message):
            made.restore(learning().state() | change)
        assert made.state() == before

    def test_a_state_fits_into_a_message_whatever_the_names(self) -> None:
        made = learning()
        owner = Owner("w")
        for number in range(3000):
            node = Node(number)
            owner.calls_as(f"{number:x}" * 200)
            node.entry.owners[owner] = 1
            watch(made, node)
            made.used([node])
        assert len(encode(Told(1, json.dumps(made.state())))) < MAX_MESSAGE_BYTES
