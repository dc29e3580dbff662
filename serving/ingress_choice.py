"""Which ingress a request goes to: the decision behind `serving.ingress_router`. Pure; time is a parameter.

All requests that name one workflow in their headers, and those about it under `/v1/workflows/`, go to one ingress,
which so knows the whole of it. Every proxy finds the same one by itself, by rendezvous hashing: an ingress that comes
or goes moves only workflows of its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from serving.naming import BAGGAGE_HEADER, clean_id, workflow_named
from serving.rendezvous import weight

WORKFLOWS_PATH = "/v1/workflows/"
KEY_HEADERS = ("authorization", "x-api-key")
# Who has not said within PATIENCE_S how busy it is, is passed over until RETRY_S after it was asked. In seconds.
PATIENCE_S = 1.0
RETRY_S = 10.0


class RequestKeys:
    """What requests are told apart by: equal keys go to one ingress.

    Args:
        sources: as `serving.naming.workflow_named` has them.
    """

    def __init__(self, sources: Sequence[tuple[str, str | None]]) -> None:
        self._sources = [(session.lower(), child and child.lower()) for session, child in sources]
        names = [name for source in self._sources for name in source if name]
        self._wanted = {name.encode(): name for name in (*names, BAGGAGE_HEADER, *KEY_HEADERS)}

    def key(self, scope: Mapping[str, Any]) -> str | None:
        """The workflow that is named, in the path or in the headers; else the API key, with which untagged calls of one
        client meet the ingress that has seen its earlier ones; None without either.

        Args:
            scope: ASGI's, of a request.
        """
        path: str = scope["path"][len(scope.get("root_path", "")) :]
        if path.startswith(WORKFLOWS_PATH) and (name := path[len(WORKFLOWS_PATH) :]):
            return f"workflow {clean_id(name) or name}"
        found: dict[str, str] = {}
        for raw, value in scope["headers"]:
            wanted = self._wanted.get(raw)
            if wanted is not None and wanted not in found:
                found[wanted] = value.decode("latin-1")
        if not found:
            return None
        if workflow := workflow_named(found, self._sources):
            return f"workflow {workflow}"
        secret = next((found[name] for name in KEY_HEADERS if found.get(name)), None)
        return None if secret is None else f"key {secret}"


class Silence:
    """Which ingresses have been asked how full they are and have not said."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}

    def asked(self, ingress: str, now: float) -> None:
        """One is asked, at `now` in seconds. Asking again before it has said changes nothing, until RETRY_S later."""
        if now - self._asked.setdefault(ingress, now) > RETRY_S:
            self._asked[ingress] = now

    def heard(self, ingress: str) -> None:
        self._asked.pop(ingress, None)

    def silent(self, ingress: str, now: float) -> bool:
        """Whether it is passed over."""
        asked = self._asked.get(ingress)
        return asked is not None and PATIENCE_S < now - asked <= RETRY_S

    def keep(self, ingresses: Collection[str]) -> None:
        """Only these are there."""
        self._asked = {ingress: at for ingress, at in self._asked.items() if ingress in ingresses}


def order(key: str | None, ingresses: Sequence[str]) -> list[str]:
    """The ingresses for a request, the first best: by rendezvous, or at random without a key."""
    if key is None:
        return random.sample(ingresses, len(ingresses))
    return sorted(ingresses, key=lambda ingress: weight(key, ingress), reverse=True)


def ranks(
    key: str | None, ingresses: Sequence[str], known: Collection[str], silent: Collection[str]
) -> list[list[str]]:
    """The order in ranks as Ray Serve takes them: of one rank the least busy gets the request, and the next rank only
    a request that nobody of the one before has room for.

    Without a key two at random are the first rank: the power of two choices (Mitzenmacher 2001). Who is silent is in
    the first rank beside one that is known, since Serve then takes that one and asks the silent one in passing, and
    nowhere else: to wait for it would hold up requests that it does not concern.

    Args:
        known: of which it is known how busy they are.
        silent: are passed over, unless all are.
    """
    heard = [ingress for ingress in order(key, ingresses) if ingress not in silent]
    if not heard:
        return [[ingress] for ingress in order(key, ingresses)]
    first = heard[: 1 if key is not None else 2]
    beside = [ingress for ingress in silent if ingress in ingresses] if all(one in known for one in first) else []
    return [first + beside, *([ingress] for ingress in heard[len(first) :])]
