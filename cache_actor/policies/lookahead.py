"""PBKV's full eviction (PBKV-HE, arXiv 2605.06472): retired nodes first, then by the look-ahead score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_actor.policies.base import VALUE_ONE, EvictionPolicy, Key, NodeFacts, after_retired, register


@register
@dataclass(frozen=True, slots=True)
class Lookahead(EvictionPolicy):
    """Retired nodes first, then by value (the discounted expected number of coming uses), then by recency.

    strict: dormant anchors count as retired, PBKV to the letter.
    unknown_value: the expected uses that a node counts as having when no owner has a forecast, so that untagged
        traffic is neither worthless nor sacred.
    """

    name = "lookahead"

    strict: bool = False
    unknown_value: float = 0.5

    def __post_init__(self) -> None:
        self._check_choice("strict", (False, True))
        self._check_number("unknown_value", 0, 1000)

    def key(self, node: NodeFacts, now: float) -> Key:
        return after_retired(node, node.value if node.known else self.unknown_value * VALUE_ONE)


def lookahead_table(
    steps: Sequence[Mapping[str, float]], survival: Sequence[float], gamma: float = 0.8
) -> dict[str, int]:
    """The look-ahead value of each agent: v[a] = sum over k = 1..K of gamma^(k-1) * s(k) * P_k[a].

    Args:
        steps: P_1..P_K, the probability of each agent to make the k-th next call.
        survival: s(1)..s(K), the probability that the workflow still makes a k-th next call.
        gamma: the discount per step, above 0 and at most 1.

    Returns:
        Values in units of 1/VALUE_ONE; agents whose value rounds to 0 are absent.

    Raises:
        ValueError: as many steps as survival probabilities are needed, and a discount in its range.
    """
    if len(steps) != len(survival):
        raise ValueError(f"{len(steps)} steps but {len(survival)} survival probabilities; give one for each step")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma is {gamma!r}; give a discount above 0 and at most 1")
    totals: dict[str, float] = {}
    for k, (probabilities, alive) in enumerate(zip(steps, survival, strict=True)):
        weight = gamma**k * alive
        for agent, probability in probabilities.items():
            totals[agent] = totals.get(agent, 0.0) + weight * probability
    return {agent: value for agent, total in totals.items() if (value := round(total * VALUE_ONE)) > 0}


def one_step_table(steps: Sequence[Mapping[str, float]], survival: Sequence[float]) -> dict[str, int]:
    """The value of the next call alone (k = 1), which ranks prefetches. Arguments and result as `lookahead_table`."""
    return lookahead_table(steps[:1], survival[:1])
