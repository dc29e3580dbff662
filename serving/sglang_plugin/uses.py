"""One call's use of the cache."""

from __future__ import annotations


class Use:
    """The nodes of a call's path share one, which makes it cheap to say more of a node's last use than when it was.

    at: when it touched the cache last, in seconds of the cache's clock.
    agent, bit: whose call it is; 0 if nobody named it. The bit may change while the call runs.
    step: the how-manieth call of its workflow it is.
    """

    __slots__ = ("agent", "at", "bit", "step")

    def __init__(self, at: float, agent: str = "", bit: int = 0, step: int = 0) -> None:
        self.at = at
        self.agent = agent
        self.bit = bit
        self.step = step


NEVER = Use(0.0)
