"""Eviction policies: `base.py` is the contract, and every other file is one policy.

To add one: read the docstring of `EvictionPolicy`, copy the shape of a small policy, import the file here; the suite
in tests/unit/test_policy_contract.py then proves it.
"""

from cache_actor.policies import lifecycle, lookahead, lru, reuse, steps, survival, ttl
from cache_actor.policies.base import (
    VALUE_ONE,
    Combine,
    EvictionPolicy,
    NodeFacts,
    ValueTable,
    make_policy,
    policy_names,
)

__all__ = [
    "VALUE_ONE",
    "Combine",
    "EvictionPolicy",
    "NodeFacts",
    "ValueTable",
    "lifecycle",
    "lookahead",
    "lru",
    "make_policy",
    "policy_names",
    "reuse",
    "steps",
    "survival",
    "ttl",
]
