"""What is plugged into the runtime layer, by name."""

from __future__ import annotations

from collections.abc import Sequence

from cache_actor.runtime import RuntimePolicy
from cache_actor.runtime_policies.anchor_warm_up import AnchorWarmUp
from cache_actor.runtime_policies.call_order import CallOrder
from cache_actor.runtime_policies.kv_prefetch import KvPrefetch
from cache_actor.runtime_policies.kv_reuse import KvReuse

RUNTIME_POLICIES: dict[str, type[RuntimePolicy]] = {
    policy.name: policy for policy in (KvReuse, KvPrefetch, AnchorWarmUp, CallOrder)
}


def make_runtime_policies(names: Sequence[str]) -> list[RuntimePolicy]:
    """Policies by their names, each once.

    Raises:
        ValueError: there is none of a name; those that exist are listed.
    """
    for name in names:
        if name not in RUNTIME_POLICIES:
            raise ValueError(f"unknown runtime policy {name!r}; choose from {', '.join(RUNTIME_POLICIES)}")
    return [RUNTIME_POLICIES[name]() for name in dict.fromkeys(names)]
