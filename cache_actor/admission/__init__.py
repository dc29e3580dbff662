"""Working-set admission: how many workflows run at once on each engine, and who waits.

`base.py` is the contract of what finds the number, and every other `*_limit.py` is one way to find it. `gate.py` keeps
who is in (`room.py`) and who waits (`queue.py`), within `bounds.py` and with the `shares.py` of tenants. All of it is
pure: times are parameters. See `headroom` in the README for why the unit is the workflow.
"""

from cache_actor.admission import fixed_limit
from cache_actor.admission.base import LimitController, Signals, controller_names, make_controller
from cache_actor.admission.bounds import Bounds, GateEvent, Queued, Refused
from cache_actor.admission.gate import Gate

__all__ = [
    "Bounds",
    "Gate",
    "GateEvent",
    "LimitController",
    "Queued",
    "Refused",
    "Signals",
    "controller_names",
    "fixed_limit",
    "make_controller",
]
