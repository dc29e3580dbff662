"""Is an engine healthy? Judged by progress, never by how long a call takes. Pure code; time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cache_actor.messages import Beat, Work
from serving.config import HealthConfig


@dataclass(slots=True)
class _Rank:
    beat: Beat
    at: float
    moved: float  # when it last was seen to start a forward, or to have nothing to do


class Load(NamedTuple):
    """Calls that run and that wait, and the rest as `SyncReport` has it."""

    running: int = 0
    waiting: int = 0
    pressure: int = 0
    work: Work = Work()
    pending_tokens: int = 0
    draining: bool = False


class EngineHealth:
    """What the beats of an engine's scheduler processes say.

    * no beat for `stall_s`, plus `stall_s_per_token` for each token of the forward that was announced: stuck;
    * beats, but calls are there and no forward has started for `no_progress_s`: stuck;
    * a process of the engine has ended: dead, for good.

    Each rank is judged by its own beats, and one that is stuck is enough. `now` of the constructor is when the
    engine was ready: from there the first beat has `stall_s`.
    """

    def __init__(self, config: HealthConfig, now: float) -> None:
        self._config = config
        self._ready = now
        self._ranks: dict[int, _Rank] = {}
        self._dead: str | None = None

    @property
    def dead(self) -> str | None:
        """Why the engine is gone for good, None while its processes live."""
        return self._dead

    def on_beat(self, beat: Beat, now: float) -> None:
        before = self._ranks.get(beat.pid)
        stands = (beat.running or beat.waiting) and not beat.forward_tokens
        if before is not None and stands and beat.forwards == before.beat.forwards:
            self._ranks[beat.pid] = _Rank(beat, now, before.moved)
        else:
            self._ranks[beat.pid] = _Rank(beat, now, now)

    def on_process_exit(self, reason: str) -> None:
        self._dead = self._dead or reason

    def problem(self, now: float) -> str | None:
        """Why the engine is unhealthy, None if it is not."""
        if self._dead:
            return self._dead
        if not self._ranks and now - self._ready > self._config.stall_s:
            return (
                f"no scheduler has given a sign of life in the {now - self._ready:.1f} s since the engine was ready, "
                f"limit {self._config.stall_s:.1f} s"
            )
        for rank in self._ranks.values():
            patience = self._config.stall_s + self._config.stall_s_per_token * rank.beat.forward_tokens
            if now - rank.at > patience:
                doing = f"a forward of {rank.beat.forward_tokens} tokens" if rank.beat.forward_tokens else "its loop"
                return (
                    f"scheduler rank {rank.beat.rank} (pid {rank.beat.pid}) is stuck in {doing}: "
                    f"no sign of life for {now - rank.at:.1f} s, limit {patience:.1f} s"
                )
            if not rank.beat.forward_tokens and now - rank.moved > self._config.no_progress_s:
                return (
                    f"scheduler rank {rank.beat.rank} (pid {rank.beat.pid}) has calls ({rank.beat.running} running, "
                    f"{rank.beat.waiting} waiting) and has started no forward for {now - rank.moved:.1f} s, "
                    f"limit {self._config.no_progress_s:.1f} s"
                )
        return None

    def load(self) -> Load:
        """Of the scheduler of rank 0."""
        beat = next((rank.beat for rank in self._ranks.values() if rank.beat.rank == 0), None)
        return Load() if beat is None else Load(beat.running, beat.waiting, beat.pressure, beat.work)

    def snapshot(self) -> dict[str, int]:
        """The newest figures of rank 0: calls running and waiting in the scheduler, forwards so far."""
        beat = next((rank.beat for rank in self._ranks.values() if rank.beat.rank == 0), None)
        return {
            "running": beat.running if beat else 0,
            "waiting": beat.waiting if beat else 0,
            "forwards": beat.forwards if beat else 0,
        }
