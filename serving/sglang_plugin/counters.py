"""What a cache counts of itself: tokens, events, and the processor time of the policy."""

from __future__ import annotations

from collections import Counter
from typing import Any

# The counter of processor time, in nanoseconds; the others count tokens, or events.
POLICY_NS = "policy_ns"


def count_prompt(counters: Counter[str], req: Any) -> None:
    """A request is over: where the tokens of its prompt came from."""
    prompt = len(req.origin_input_ids)
    hits = {
        "hit_device": req.cached_tokens_device,
        "hit_host": req.cached_tokens_host,
        "hit_storage": req.cached_tokens_storage,
    }
    counters.update(hits)
    counters["prompt"] += prompt
    counters["computed"] += max(0, prompt - sum(hits.values()))
