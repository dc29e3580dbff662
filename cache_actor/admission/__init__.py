"""Working-set admission: how many workflows run at once on each engine, and who waits.

`base.py` is the contract of what finds the number, and every other `*_limit.py` is one way to find it. `gate.py` says
who is in (`inside.py`, `room.py`) and who waits (`queue.py`), within `bounds.py` and with the `shares.py` of tenants.
All of it is pure: times are parameters. What each is worth is in the README, under "Who is let in".
"""

from cache_actor.admission import (
    aimd_limit,
    balance_limit,
    fixed_limit,
    gradient_limit,
    miss_curve_limit,
    pause_limit,
    working_set_limit,
)
from cache_actor.admission.base import LimitController, Signals, controller_names, make_controller
from cache_actor.admission.bounds import Bounds, Queued, Refused
from cache_actor.admission.gate import Gate

__all__ = [
    "Bounds",
    "Gate",
    "LimitController",
    "Queued",
    "Refused",
    "Signals",
    "aimd_limit",
    "balance_limit",
    "controller_names",
    "fixed_limit",
    "gradient_limit",
    "make_controller",
    "miss_curve_limit",
    "pause_limit",
    "working_set_limit",
]
