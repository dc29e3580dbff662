"""Which router decides, the same at all ingresses: what any of them was switched to last, the coordinator tells all."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cache_actor.admission_messages import AdmissionAnswer, AdmissionReport
from serving.errors import invalid_request
from serving.routing_table import RoutingTable

logger = logging.getLogger("forecache")

# Of two switches in clocks that differ the second is at least so much later, in seconds.
_LATER_S = 1e-3


class RouterSwitch:
    """One ingress's end of it.

    Args:
        table: whose router it is.
        choices: what may be asked for by name; import paths are the operator's to say, not a client's.
    """

    def __init__(self, table: RoutingTable, choices: Sequence[str]) -> None:
        self._table = table
        self._choices = choices
        self._told = ""
        self._switched = 0.0

    def switch(self, asked: Mapping[str, Any]) -> None:
        """What a client asks for: `name`, and `parameters` if any.

        Raises:
            ApiError: there is no such router or parameter, or a value is out of range.
        """
        name, parameters = asked.get("name"), asked.get("parameters", {})
        if not isinstance(name, str) or name not in self._choices:
            reason = f"choose from {', '.join(self._choices)}; others are named in router.others when the server starts"
            raise invalid_request(f"name cannot be {name!r}; {reason}", param="name")
        if not isinstance(parameters, dict):
            raise invalid_request(f"parameters cannot be {parameters!r}; an object is needed", param="parameters")
        try:
            self._table.switch(name, parameters)
        except ValueError as error:
            raise invalid_request(str(error), param="parameters") from error
        self._told = json.dumps([name, parameters])
        self._switched = max(time.time(), self._switched + _LATER_S)
        logger.warning("forecache: calls are routed by %s %s", name, parameters)

    def tell(self, report: AdmissionReport) -> AdmissionReport:
        """A report to the coordinator, with what this ingress was switched to."""
        return replace(report, router=self._told, rerouted=self._switched)

    def hear(self, answer: AdmissionAnswer) -> None:
        """What the coordinator answers, from which another router may follow."""
        if answer.rerouted <= self._switched:
            return
        self._told, self._switched = answer.router, answer.rerouted
        try:
            name, parameters = json.loads(answer.router)
            self._table.switch(name, parameters)
        except (ValueError, TypeError) as error:  # an ingress of another version has other routers
            logger.warning(
                "forecache: %s, to which another ingress was switched, cannot be made: %s", answer.router, error
            )
            return
        logger.warning("forecache: calls are routed by %s %s, as at another ingress", name, parameters)
