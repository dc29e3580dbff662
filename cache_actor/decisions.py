"""A workflow's log: what happened to it, or was decided about it, and why. Kept small, put into words when asked for.

An entry is a tuple of plain values, which Python's collector of cycles does not look at again: there are a great many.
"""

from __future__ import annotations

from typing import Any

from cache_actor.admission_messages import GateEvent

# When, in seconds since 1970; what; on which engine; and what its words need.
Decision = tuple[Any, ...]
SHADOW = "shadow "

_WORDS = {
    "call": "{} begins",
    "over": "{}: of {} tokens {} hit on the device, {} on the host",
    "table": "{} expects {}, its end {:.0%}; values sent",
    "prefetch": "{} tokens are on the host alone and {} comes next with {:.0%}: prefetch ordered",
    "warm-up": "{} comes next with {:.0%} and has never called here: its anchor is computed before",
    "receipt": "prefetch for {} {}: {} tokens loaded{}",
    "evicted": "{} tokens left the {} tier: {}",
    "held": "its call waits for a place",
    "let_in": "its call has a place after {:.1f} s",
    "paused": "it gives its place up until its next call gets one; what it used counts as used late",
    "left": "it lives on {} now and was answered there; what only it used here goes first",
    "end": "it has ended ({}); what only it used goes first",
}


def entry_of(event: GateEvent) -> Decision:
    """The entry of what became of a workflow at a gate."""
    values = (event.waited_s,) if event.what == "let_in" else ()
    return (event.at, event.what, event.engine, *values)


def in_words(decision: Decision) -> str:
    """The entry for people. What a policy of somebody's own has written is shown as it is."""
    _, what, _, *values = decision
    words = _WORDS.get(what.removeprefix(SHADOW))
    text = words.format(*values) if words else " ".join(map(str, values))
    return f"would: {text}" if what.startswith(SHADOW) else text
