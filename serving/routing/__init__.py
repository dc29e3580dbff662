"""Which engine a call goes to. `base.py` is the contract; a router is one small file. Pure code, no Ray.

Routers decide in the process that takes calls in, from snapshots that it is sent; they ask nobody.
"""

from serving.routing import session_hash, workflow_router
from serving.routing.base import Decision, RoutedCall, Router, Why, make_router, router_names

__all__ = [
    "Decision",
    "RoutedCall",
    "Router",
    "Why",
    "make_router",
    "router_names",
    "session_hash",
    "workflow_router",
]
