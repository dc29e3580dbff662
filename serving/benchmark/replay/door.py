"""Admission in a replay: the gate and the limits of Forecache, before modelled engines."""

from __future__ import annotations

from collections.abc import Sequence

from cache_actor.admission import Bounds, Gate, LimitController, Signals, make_controller
from serving.benchmark.contestants import Contestant
from serving.benchmark.replay.engine import ModelEngine

# How often limits are found anew, in seconds.
PERIOD_S = 1.0
# The place of a workflow whose engine is gone.
ANYWHERE = -1


class Door:
    """Who may call when. Engines are named by their places.

    Attributes:
        limits: the latest, by place; None: everybody.
        longest_wait_s: of the calls that were held, so far.
    """

    def __init__(self, contestant: Contestant, engines: Sequence[ModelEngine], bounds: Bounds) -> None:
        self._engines = engines
        self._contestant = contestant
        self._down: set[int] = set()
        self._gate = Gate(bounds)
        self._controllers = [self._controller() for _ in engines]
        self._contexts: dict[str, int] = {}
        self.longest_wait_s = 0.0
        self.limits: list[int | None] = [None] * len(engines)
        self.observe(0.0)

    @property
    def limited(self) -> bool:
        """Whether any engine has a limit; if not, the router places workflows."""
        return self._gate.limited

    def _controller(self) -> LimitController:
        return make_controller(self._contestant.admission, self._contestant.admission_parameters)

    def placed(self, workflow: str, place: int) -> None:
        """Where a call went that was let in."""
        self._gate.placed(workflow, str(place))

    def lose(self, place: int, now: float) -> None:
        """An engine is gone."""
        self._down.add(place)
        self.observe(now)

    def restore(self, place: int) -> None:
        """An engine has come, empty."""
        self._down.discard(place)
        self._controllers[place] = self._controller()

    def ask(self, workflow: str, now: float) -> int | None:
        """The place of the engine to which a call may go now, ANYWHERE if that is for the router to say; None: it is
        held.

        Raises:
            Refused: it may not wait.
        """
        engine = self._gate.ask(workflow, now)
        return None if engine is None else _place(engine)

    def done(self, workflow: str, now: float, context_tokens: int, gap_s: float) -> None:
        """A call is over; its workflow's context is so long, and its next call so far."""
        self._contexts[workflow] = context_tokens
        self._gate.note(workflow, context_tokens, gap_s)
        self._gate.done(workflow, now)

    def over(self, workflow: str, now: float | None = None) -> None:
        self._contexts.pop(workflow, None)
        self._gate.over(workflow, now)

    def admitted(self, now: float | None = None) -> list[tuple[str, int]]:
        """The workflows whose calls are held no more, each with the place of its engine, or ANYWHERE."""
        came = [(workflow, _place(engine)) for workflow, engine in self._gate.admitted(now)]
        self.longest_wait_s = max([self.longest_wait_s, *(event.waited_s for event in self._gate.take_events())])
        return came

    def observe(self, now: float) -> None:
        """Finds the limits anew."""
        self.limits = [
            None if place in self._down else controller.observe(self._signals(place, now))
            for place, controller in enumerate(self._controllers)
        ]
        there = {str(place): limit for place, limit in enumerate(self.limits) if place not in self._down}
        self._gate.set_limits(there, now)

    def sample(self, place: int) -> dict[str, float]:
        """For the timeline of an engine: the limit (left out without one), who is in, and who waits."""
        limit = self.limits[place]
        sample = {"admitted": float(self._gate.count(str(place))), "held": float(self._gate.held)}
        return sample if limit is None else sample | {"limit": float(limit)}

    def _signals(self, place: int, now: float) -> Signals:
        engine = self._engines[place]
        inside = list(self._gate.inside(str(place)))
        return Signals(
            at=now,
            admitted=len(inside),
            held=self._gate.held,
            running_calls=engine.running_calls,
            waiting_calls=engine.waiting_calls,
            prefill_s=engine.prefill_s,
            busy_s=engine.busy_s,
            computed=engine.computed,
            regret=engine.cache.regret,
            reused=engine.cache.reused,
            output=engine.generated,
            working_set=sum(self._contexts.get(workflow, 0) for workflow in inside),
            growth=0,
            device_tokens=engine.shape.device_tokens,
            host_tokens=engine.shape.host_tokens,
        )


def _place(engine: str) -> int:
    return int(engine) if engine else ANYWHERE
