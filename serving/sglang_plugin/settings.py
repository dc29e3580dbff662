"""How the cache is to behave, on its way from the replica to the engine's scheduler processes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

VARIABLE = "FORECACHE_CACHE"
# The time of a page in storage is that of its last use, to so many seconds.
USE_PRECISION_S = 60.0


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What `cache:` of a config says to the engine.

    policy, parameters: the eviction policy and its parameters.
    tiers: the tiers that it steers; the others go by recency.
    max_workflows: active workflows that the ledger knows.
    prefetch: `off`, `conservative` or `aggressive`.
    prefetch_reserve_tokens: device tokens that prefetching leaves free.
    prefetch_tokens_per_s: what the link from the host moves, until loads have been measured.
    learned_file: what an earlier engine has learned; empty: nothing.
    """

    policy: str = "reuse"
    parameters: dict[str, Any] = field(default_factory=dict)
    tiers: tuple[str, ...] = ("device", "host")
    max_workflows: int = 10_000
    prefetch: str = "conservative"
    prefetch_reserve_tokens: int = 8192
    prefetch_tokens_per_s: float = 50_000.0
    learned_file: str = ""

    def to_environment(self) -> None:
        """For the processes that this one starts."""
        os.environ[VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> CacheSettings:
        """What the parent process has said; the defaults if it said nothing."""
        said = json.loads(os.environ.get(VARIABLE, "{}"))
        return cls(**said | ({"tiers": tuple(said["tiers"])} if "tiers" in said else {}))
