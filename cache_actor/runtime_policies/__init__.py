"""What is plugged into the runtime layer: by name, or by the import path of a policy of somebody's own."""

from __future__ import annotations

import importlib
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
    """Policies by their names, or by `package.module:Class`, each once and in this order.

    Raises:
        ValueError: there is none of a name (those that exist are listed), or nothing can be made of an import path.
    """
    return [_policy_class(name)() for name in dict.fromkeys(names)]


def _policy_class(name: str) -> type[RuntimePolicy]:
    if name in RUNTIME_POLICIES:
        return RUNTIME_POLICIES[name]
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(
            f"unknown runtime policy {name!r}; choose from {', '.join(RUNTIME_POLICIES)}, or give the import path of "
            "your own: package.module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"runtime policy {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, RuntimePolicy)):
        raise ValueError(f"runtime policy {name!r} is no subclass of cache_actor.runtime.RuntimePolicy")
    return found
