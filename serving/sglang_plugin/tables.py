"""Value tables that lapse, and those that come before their workflow does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Table = dict[str, int]


class Tables:
    """Until when each workflow's value table stands. One for a workflow that has made no call here waits for the first.

    Args:
        put: gives a workflow a table, or with None takes it back; False if the workflow has made no call here.
        limit: of tables that wait; beyond it the oldest is forgotten.
    """

    def __init__(self, put: Callable[[str, Table | None], bool], limit: int) -> None:
        self._put = put
        self._limit = limit
        self._until: dict[str, float] = {}
        self._early: OrderedDict[str, tuple[Table, float]] = OrderedDict()

    def take(self, workflow: str, table: Table | None, until: float) -> None:
        """A table that stands until then, in seconds of the cache's clock; None: no forecast any more."""
        if self._put(workflow, table):
            if table is not None:
                self._until[workflow] = until
        elif table is None:
            self._early.pop(workflow, None)
        else:
            self._early[workflow] = table, until
            self._early.move_to_end(workflow)
            if len(self._early) > self._limit:
                self._early.popitem(last=False)

    def called(self, workflow: str) -> None:
        """The workflow has made a call: it gets what has waited for it."""
        if early := self._early.pop(workflow, None):
            self.take(workflow, *early)

    def renew(self, until: float) -> None:
        """All that stand, and those that wait, do so until then."""
        self._until = dict.fromkeys(self._until, until)
        for workflow, (table, _) in self._early.items():
            self._early[workflow] = table, until

    def end(self, workflow: str) -> None:
        self._until.pop(workflow, None)
        self._early.pop(workflow, None)

    def expire(self, now: float) -> None:
        """Takes back what stands no longer."""
        for workflow in [workflow for workflow, until in self._until.items() if until <= now]:
            del self._until[workflow]
            self.take(workflow, None, now)
        for workflow in [workflow for workflow, (_, until) in self._early.items() if until <= now]:
            del self._early[workflow]
