"""Which band a point of a sweep lies in. Only where the cache is short, and not filled by running calls, can a policy
matter; a point outside of that band says nothing about policies and must not be averaged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serving.benchmark.bootstrap import excludes
from serving.benchmark.contrast import LEAST_DISTANCE, Contrast

NOTHING_EVICTED = "nothing evicted"
SOME_EVICTED = "some evicted"
THRASHING = "thrashing"
SATURATED = "saturated"
UNKNOWN = "unknown"

NOTHING = 0.01
HEAVY = 0.20
SHORT_OF_ROOM = 0.10
MOST_SAMPLES = 0.50


def band(
    evicted_share: float | None, saturated_samples: float | None, contrasts: Mapping[str, Contrast]
) -> tuple[str, str]:
    """The band and why, from measured figures. The first rule that holds:

    1. *unknown*: nobody counted evictions.
    2. *nothing evicted*: less than 1 % of the prompt tokens were evicted from the device.
    3. *saturated*: in at least half of the samples, what running calls do not hold was less than 10 % of the pool.
    4. *saturated*: at least 20 % were evicted, and yet no other policy's hit share is both beyond noise and at least
       0.01 away from the baseline's; needs another policy that can evict (`unlimited` does not count).
    5. *thrashing*: at least 20 % were evicted: the cache is short and the order of eviction matters.
    6. *some evicted*: the rest.

    Args:
        evicted_share: tokens evicted from the device over prompt tokens, under the baseline; None if not counted.
        saturated_samples: `saturated_samples` of the baseline's timeline, None if it has no `running`.
        contrasts: the other policies over the baseline.
    """
    if evicted_share is None:
        return UNKNOWN, "no policy here counted evictions"
    evicted = f"{evicted_share:.1%} of the prompt tokens were evicted from the device"
    if evicted_share < NOTHING:
        return NOTHING_EVICTED, evicted
    if saturated_samples is not None and saturated_samples >= MOST_SAMPLES:
        return SATURATED, f"running calls alone filled the pool in {saturated_samples:.0%} of the samples"
    if evicted_share < HEAVY:
        return SOME_EVICTED, evicted
    rivals = [each.hit_share_difference for name, each in contrasts.items() if name != "unlimited"]
    compared = [difference for difference in rivals if difference is not None]
    if compared and not any(excludes(each, 0.0) and abs(each[0]) >= LEAST_DISTANCE for each in compared):
        return SATURATED, f"{evicted}, and yet the hit share of no policy differs from the baseline's beyond noise"
    return THRASHING, evicted


def saturated_samples(timeline: Sequence[Mapping[str, float]]) -> float | None:
    """Share of the samples in which less than `SHORT_OF_ROOM` of the pool was free or could be evicted; None if the
    samples do not say what running calls hold."""
    known = [sample for sample in timeline if "running" in sample]
    pools = [sum(sample.get(part, 0.0) for part in ("active", "retired", "prefetched", "free")) for sample in known]
    short = [
        pool - sample["running"] < SHORT_OF_ROOM * pool for sample, pool in zip(known, pools, strict=True) if pool > 0
    ]
    return sum(short) / len(short) if short else None
