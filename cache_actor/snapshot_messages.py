"""What routers are told of engines from time to time. `messages.py` makes bytes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotsAsked:
    """A router wants the `SnapshotDelta` that follows on this number, as soon as there is one; -1: it has none yet."""

    number: int


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """How an engine's snapshot differs from the one before; the fields are those of `EngineSnapshot`.

    workflows: those that have changed: tokens on the device, on the host, and on their way; zeros at the end left out.
    """

    engine: str
    version: int
    at: float
    workflows: dict[str, list[int]]
    workflows_gone: list[str]
    anchors: dict[str, int]
    anchors_gone: list[str]
    pending_tokens: int
    running_calls: int
    needed_tokens: int
    capacity_tokens: int
    draining: bool
    prefill_token_s: float
    running_call_s: float


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """What has changed since the delta before.

    number: one more than that of the one before.
    made_at: on the clock of the engines' `at`, so that a receiver can tell their ages though its own clock differs.
    whole: nothing before counts: these are all engines, with all that is to be said of them.
    gone: engines that are no more.
    """

    number: int
    made_at: float
    whole: bool
    engines: list[EngineDelta]
    gone: list[str]
