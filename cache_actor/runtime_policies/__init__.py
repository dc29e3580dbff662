"""What is plugged into the runtime layer: by name, or by the import path of a policy of somebody's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cache_actor.import_paths import imported
from cache_actor.runtime import RuntimePolicy
from cache_actor.runtime_policies.admission import Admission
from cache_actor.runtime_policies.anchor_warm_up import AnchorWarmUp
from cache_actor.runtime_policies.call_order import CallOrder
from cache_actor.runtime_policies.kv_prefetch import KvPrefetch
from cache_actor.runtime_policies.kv_reuse import KvReuse

RUNTIME_POLICIES: dict[str, type[RuntimePolicy]] = {
    policy.name: policy for policy in (KvReuse, KvPrefetch, AnchorWarmUp, CallOrder, Admission)
}


def make_runtime_policies(
    names: Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> list[RuntimePolicy]:
    """Policies by their names, or by `package.module:Class`, each once and in this order.

    Args:
        settings: arguments of some of them, by name.

    Raises:
        ValueError: there is none of a name (those that exist are listed), nothing can be made of an import path, or a
            policy cannot take its settings.
    """
    return [_policy_class(name)(**(settings or {}).get(name, {})) for name in dict.fromkeys(names)]


def _policy_class(name: str) -> type[RuntimePolicy]:
    return RUNTIME_POLICIES.get(name) or imported("runtime policy", name, RuntimePolicy, RUNTIME_POLICIES)
