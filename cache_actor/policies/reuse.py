"""Forecache's own policy: what is kept is what is likely to be used again before it would have been replaced.

Forecasts are evidence here and not the truth. A table (`reuse_table.py`) learns, on the engine, how often nodes in a
situation like this one's were used again and how soon; the forecast is a part of the situation. Nothing is assumed of
agents: what does not predict reuse here is averaged away, and with nothing learned the order is `lifecycle`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_actor.policies.base import EvictionPolicy, Key, NodeFacts, after_retired, register
from cache_actor.policies.reuse_table import LEVELS

FEATURES = tuple(feature for _, feature in LEVELS)


@register
@dataclass(frozen=True, slots=True)
class Reuse(EvictionPolicy):
    """Retired nodes first, then by the learned chance of reuse (`NodeFacts.chance`), then by recency.

    features: which parts of a node's situation are learned from, of `FEATURES`, by commas; the others are left out.
    residence: for how long a node has a chance, in multiples of what the tier holds, counted in tokens that are new to
        the tier; of a node used again after d such tokens, exp(-d / (residence * capacity)) counts.
    evidence: how many observations weigh as much as what is known of less special situations.
    memory: after so many observations of one situation older ones count for less.
    samples: candidates that are watched at each eviction, beside the victim, until enough are.
    guard: whether the engine compares it with `lru`, `lifecycle` and `lookahead` all the time, and follows the best.
    piecewise: of a victim no more leaves than is asked for, from its end on.
    strict: dormant anchors count as retired, PBKV to the letter.
    """

    name = "reuse"

    features: str = ",".join(FEATURES)
    residence: float = 1.0
    evidence: float = 16.0
    memory: int = 256
    samples: int = 8
    guard: bool = True
    piecewise: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.features, str) or not set(self.learned_from) <= set(FEATURES):
            known = ",".join(FEATURES)
            raise ValueError(f"policy {self.name!r}: features is {self.features!r}; give some of {known}")
        self._check_number("residence", 0.01, 100)
        self._check_number("evidence", 0, 1000)
        self._check_number("memory", 8, 1 << 20)
        self._check_number("samples", 0, 64)
        if not isinstance(self.samples, int) or not isinstance(self.memory, int):
            raise ValueError(f"policy {self.name!r}: samples and memory are whole numbers")
        self._check_choice("guard", (False, True))
        self._check_choice("piecewise", (False, True))
        self._check_choice("strict", (False, True))

    @property
    def learned_from(self) -> list[str]:
        """The names in `features`."""
        return [name for name in self.features.split(",") if name]

    def key(self, node: NodeFacts, now: float) -> Key:
        return after_retired(node, node.chance)
