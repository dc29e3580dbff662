"""The calls of a workflow, as engines and the coordinator remember them: in bounded space, ready for a forecast."""

from __future__ import annotations

from array import array

import numpy as np

from predictor_actor.base import PATH_LIMIT, Call, Ending, Prefix, WorkflowTrace

# A longer path loses its older half; forecasts look back much less, and traces of what runs for ever teach little more.
MAX_CALLS = 512
_FIELDS = 4
_UNKNOWN = float("nan")


class CallPath:
    """Calls in the order in which they began; several may run at once.

    Attributes:
        agents: who made those that are remembered.
        length: how many there were in all.
        started_at: seconds since 1970 of the first; 0 before it.
    """

    __slots__ = ("_numbers", "_open", "agents", "length", "started_at")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.length = 0
        self.started_at = 0.0
        self._numbers = array("f")
        self._open: list[int] = []

    @classmethod
    def seen(cls, agents: list[str], numbers: list[float], length: int, running: int) -> CallPath:
        """One that was told by `told`.

        Raises:
            ValueError: the numbers are not four for each agent, or the counts do not fit them.
        """
        if len(numbers) != _FIELDS * len(agents) or length < len(agents) or not 0 <= running <= len(agents):
            raise ValueError(f"{len(agents)} agents, {len(numbers)} numbers, length {length}, {running} running")
        path = cls()
        path.agents = list(agents)
        path.length = length
        starts = [start for start in numbers[2::_FIELDS] if start == start]
        path.started_at = min(starts, default=0.0)
        times = np.array(numbers, np.float64).reshape(-1, _FIELDS)
        times[:, 2:] -= path.started_at
        path._numbers = array("f", times.astype(np.float32).reshape(-1).tolist())
        path.settle(running)
        return path

    @property
    def running(self) -> int:
        return len(self._open)

    @property
    def context(self) -> int:
        """Tokens of prompt and output of the latest call of which they are known; 0 before there is one. A call that
        failed has left nothing: engines refuse prompts that are longer than they can ever hold."""
        calls = range(len(self.agents) - 1, -1, -1)
        return next((tokens for call in calls if not self._failed(call) and (tokens := self._tokens(call))), 0)

    @property
    def growth(self) -> float:
        """Tokens by which the context has grown from one call to the next, in the mean over what is remembered; at
        least 0."""
        steps = len(self.agents) - 1
        return max(0.0, (self.context - self._tokens(0)) / steps) if steps > 0 else 0.0

    def gap_s(self, now: float) -> float:
        """Seconds until the next call, as the mean of the pauses so far has it; 0 while a call runs, or without one.

        Args:
            now: seconds since 1970.
        """
        rows = np.array(self._numbers, np.float64).reshape(-1, _FIELDS)
        if self._open or not len(rows):
            return 0.0
        pauses = rows[1:, 2] - rows[:-1, 3]
        pauses = pauses[pauses >= 0]  # neither unknown nor of calls that ran side by side
        over = float(rows[-1, 3])
        passed = now - self.started_at - over if over == over else 0.0
        return max(0.0, float(pauses.mean()) - passed) if len(pauses) else 0.0

    def began(self, agent: str, at: float, prompt_tokens: int) -> None:
        """A call begins at `at`, in seconds since 1970; `prompt_tokens` is 0 if it is not known."""
        if not self.length:
            self.started_at = at
        if len(self.agents) >= MAX_CALLS:
            self._forget(MAX_CALLS // 2)
        self._open.append(len(self.agents))
        self.agents.append(agent)
        self._numbers.extend((prompt_tokens or _UNKNOWN, _UNKNOWN, at - self.started_at, _UNKNOWN))
        self.length += 1

    def over(self, agent: str, at: float, prompt_tokens: int, output_tokens: int) -> bool:
        """The agent's call that runs for longest is over; False if none of it runs."""
        place = next((place for place in self._open if self.agents[place] == agent), None)
        if place is None:
            return False
        self._open.remove(place)
        row = _FIELDS * place
        if prompt_tokens:
            self._numbers[row] = prompt_tokens
        self._numbers[row + 1] = output_tokens
        self._numbers[row + 3] = at - self.started_at
        return True

    def settle(self, running: int) -> None:
        """Of its calls only the latest so many still run: what became of the others was never told."""
        self._open = list(range(max(0, len(self.agents) - running), len(self.agents)))

    def prefix(self, workflow: str) -> Prefix:
        """What a forecast is asked for with."""
        kept = self.agents[-PATH_LIMIT:]
        numbers = np.array(self._numbers[-_FIELDS * len(kept) :] if kept else (), np.float32).reshape(-1, _FIELDS)
        return Prefix(kept, numbers, self.length, None, workflow)

    def told(self, most: int) -> tuple[list[str], list[float]]:
        """The latest calls' agents and numbers as `seen` takes them, times in seconds since 1970."""
        kept = self.agents[-most:]
        numbers = np.array(self._numbers[-_FIELDS * len(kept) :] if kept else (), np.float64).reshape(-1, _FIELDS)
        numbers[:, 2:] += self.started_at
        return kept, numbers.reshape(-1).tolist()

    def trace(self, workflow: str, ending: Ending) -> WorkflowTrace:
        """What is remembered, for predictors to learn from."""
        calls = tuple(
            Call(agent, _count(row[0]), _count(row[1]), _seconds(row[2]), _seconds(row[3]))
            for agent, row in zip(self.agents, np.array(self._numbers).reshape(-1, _FIELDS), strict=True)
        )
        return WorkflowTrace(workflow, calls, ending, self.started_at)

    def _failed(self, call: int) -> bool:
        return self._numbers[_FIELDS * call + 1] == 0.0

    def _tokens(self, call: int) -> int:
        row = _FIELDS * call
        return _count(self._numbers[row]) + _count(self._numbers[row + 1])

    def _forget(self, calls: int) -> None:
        del self.agents[:calls]
        del self._numbers[: _FIELDS * calls]
        self._open = [place - calls for place in self._open if place >= calls]


def _count(value: float) -> int:
    return int(value) if value == value else 0


def _seconds(value: float) -> float | None:
    return float(value) if value == value else None
