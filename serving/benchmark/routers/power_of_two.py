"""Ray Serve's own router: of two engines by chance the one with fewer calls in flight."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from serving.routing.base import Decision, RoutedCall, Router, register


@register("power-of-two")
class PowerOfTwo(Router):
    """Power of two choices, as `ray.serve`'s `PowerOfTwoChoicesRequestRouter` has it: each call for itself.

    Args:
        seed: of the choices.
    """

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._engines: list[str] = []

    def set_engines(self, engines: Iterable[str]) -> None:
        self._engines = sorted(set(engines))

    def drop_engine(self, engine: str) -> None:
        self._engines = [one for one in self._engines if one != engine]

    def route(self, call: RoutedCall, running: Mapping[str, int], now: float) -> Decision | None:
        if not self._engines:
            return None
        two = self._dice.sample(self._engines, min(2, len(self._engines)))
        return Decision(min(two, key=lambda engine: running.get(engine, 0)), "random")
