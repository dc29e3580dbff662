"""What a cache holds, for people and machines: the answers to `Ask`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from cache_actor.policies import VALUE_ONE
from serving.sglang_plugin.integrity import check_integrity
from serving.sglang_plugin.reuse import TIERS

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache

MAX_NODES = 2000
# The answer must fit into a message (`MAX_MESSAGE_BYTES`), whatever the names of workflows and agents.
MAX_DUMP_BYTES = 512 * 1024
MAX_OWNERS_SHOWN = 8


def answer(cache: ForecacheCache | None, what: str) -> dict[str, Any]:
    """The answer to a question; `error` in it when there is none."""
    if cache is None:
        return {"error": "this engine runs SGLang's own cache: set `cache.backend: forecache`"}
    if what == "report":
        return dataclasses.asdict(cache.report(cache.applied_plan)) | {"policy": cache.policy.name}
    if what == "figures":
        return cache.figures()
    if what == "learned":
        return cache.learning.state() if cache.learning is not None else {}
    if what == "dump":
        return dump(cache)
    if what == "check":
        try:
            check_integrity(cache)
        except AssertionError as error:
            return {"consistent": False, "error": str(error)}
        return {"consistent": True}
    return {"error": f"unknown question {what!r}; ask for report, figures, learned, dump or check"}


def dump(cache: ForecacheCache) -> dict[str, Any]:
    """The tree in depth-first order: for each node its depth, size, tiers, owners, value, state and, under a policy
    that learns, its chance of reuse in each tier with the evidence.

    Of a tree with more than 2,000 nodes, or more than 512 KiB of them as JSON, the rest is left out and counted.
    """
    rows: list[dict[str, Any]] = []
    room = MAX_DUMP_BYTES
    left_out = 0
    stack = [(child, 0) for child in cache.tree_core.root_node.children.values()]
    while stack:
        node, depth = stack.pop()
        stack += [(child, depth + 1) for child in node.children.values()]
        if len(rows) < MAX_NODES and room > 0:
            row = _row(cache, node, depth)
            room -= len(json.dumps(row))
            if room >= 0:
                rows.append(row)
                continue
        left_out += 1
    return {"policy": cache.policy.name, "nodes": rows, "left_out": left_out}


def _row(cache: ForecacheCache, node: Any, depth: int) -> dict[str, Any]:
    ledger, entry = cache.ledger, node.entry
    owners = {
        owner.workflow: ledger.agents.named(mask) for owner, mask in list(entry.owners.items())[:MAX_OWNERS_SHOWN]
    }
    device, host = not node.evicted, node.backuped
    state = "retired" if ledger.is_retired(entry) else "active" if entry.owners else "dormant" if entry.past else "new"
    return {
        "id": node.id,
        "depth": depth,
        "tokens": len(node.key),
        "tier": "both" if device and host else "device" if device else "host",
        "state": state,
        "shared": entry.shared,
        "value": round(entry.value / VALUE_ONE, 3) if entry.tables else None,
        "owners": owners,
        "owner_count": len(entry.owners),
        "chance": _chances(cache, node),
    }


def _chances(cache: ForecacheCache, node: Any) -> dict[str, Any] | None:
    learning = cache.learning
    if learning is None or node.entry.retirement:
        return None
    tiers = TIERS if cache.tiered else TIERS[:1]
    return {
        tier: {
            "chance": round(learning.chance(tier, node.entry), 4),
            "evidence": [
                {"situation": one.situation, "observations": round(one.observations, 1), "mean": round(one.mean, 4)}
                for one in learning.explain(tier, node.entry)
            ],
        }
        for tier in tiers
    }
