"""What a scheduler spends its time on, and how many tokens come of it. Pure; time is a parameter."""

from __future__ import annotations


class Meter:
    """Sums over a scheduler's batches, told of their beginnings and ends.

    The time between two ends belongs to the batch that ends, from its beginning on if there was nothing to do before.
    So the seconds add up to those in which the engine was not idle, with overlap scheduling, too: there a batch begins
    while the one before still runs, and a batch ends when its result has come.

    Attributes:
        prefill_s, busy_s: seconds spent on batches with prefill in them, and on all.
        computed, output: tokens of prompts computed, and generated.
    """

    def __init__(self) -> None:
        self.prefill_s = self.busy_s = 0.0
        self.computed = self.output = 0
        self._since: float | None = None

    def begins(self, now: float) -> None:
        """A batch is launched at `now`, in seconds of one monotonic clock."""
        if self._since is None:
            self._since = now

    def ends(self, now: float, prefill: bool, computed: int, output: int) -> None:
        """The result of a batch has come: whether there was prefill in it, and its tokens."""
        if self._since is not None:
            self.busy_s += now - self._since
            self.prefill_s += now - self._since if prefill else 0.0
        self._since = now
        self.computed += computed
        self.output += output

    def idles(self) -> None:
        """There is nothing to do."""
        self._since = None
