"""The contract of everything that says which engine a call goes to. Pure: time is a parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cache_actor.import_paths import imported
from cache_actor.snapshots import EngineSnapshot

Why = Literal["sticky", "resident", "parent", "anchor", "least-loaded", "overload", "admitted", "hash", "random"]
"""Why an engine was chosen, for a reply header and a metric.

* `sticky`: the workflow lives there.
* `resident`: it does not, but what it needs is there.
* `parent`: its parent's context is there.
* `anchor`: its agent's anchor is there, or its prefix.
* `least-loaded`: nothing of it is anywhere, or a hot anchor gets another copy.
* `overload`: it has left its engine, which was overloaded or is draining.
* `admitted`: it was let in to a place on that engine.
* `hash`: too little is known of the engines.
* `random`: by chance, of two the less loaded.
"""


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """What a router knows of a call.

    Attributes:
        prompt_tokens: an estimate will do.
        anchor: hash of its agent's anchor.
        tagged: whether the client named the workflow.
        pieces: the prompt as a router sees it that goes by its text: a name for each piece, and its length.
        wanted: the engine that the workflow was let in to; one with places may go there if it has no engine yet.
    """

    workflow: str
    agent: str
    prompt_tokens: int
    parent: str | None = None
    anchor: str | None = None
    tagged: bool = True
    pieces: tuple[tuple[str, int], ...] = ()
    wanted: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a call goes, and why."""

    engine: str
    why: Why


class Router(ABC):
    """Says which engine each call goes to.

    Contract, proved for every router by tests/unit/test_router_contract.py:
    * an engine that is chosen exists;
    * an engine that was dropped is not chosen again before `set_engines` names it;
    * without engines there is no decision, with one engine it is that one;
    * the same words in the same order get the same answers;
    * a router that says `sticky` for a workflow says the engine that it said before, or was told to adopt it on;
    * no word about unknown workflows or engines is an error.

    Attributes:
        reads_prompts: whether it goes by `RoutedCall.pieces`, which are left out otherwise.
    """

    reads_prompts: ClassVar[bool] = False

    @abstractmethod
    def set_engines(self, engines: Iterable[str]) -> None:
        """The engines that exist now."""

    @abstractmethod
    def drop_engine(self, engine: str) -> None:
        """An engine is gone: it gets nothing from now on."""

    @abstractmethod
    def route(self, call: RoutedCall, running: Mapping[str, int], now: float) -> Decision | None:
        """Where a call goes; None without engines.

        Args:
            running: calls in flight by engine, as far as is known here; what is not in it has none.
            now: in seconds, on the snapshots' clock.
        """

    def see(self, snapshot: EngineSnapshot) -> None:
        """A snapshot has come. By default nobody looks at it."""
        return

    def adopt(self, workflow: str, engine: str) -> None:
        """A workflow lives on an engine, as another router has decided. By default nobody remembers where it lives."""
        return

    def answered(self, workflow: str, engine: str) -> str | None:
        """A call is over. The engine that its workflow has left for good, whose copy may be retired now; often None."""
        return None

    def rehome(self, now: float) -> list[str]:
        """To be asked a few times a second: workflows that are moved now, between their calls. By default none."""
        return []

    def release(self, workflow: str) -> None:
        """A workflow is over. By default nothing was kept of it."""
        return


_MAKERS: dict[str, Callable[..., Router]] = {}


def register(name: str) -> Callable[[type[Router]], type[Router]]:
    """Decorator: makes a router known by its name; what it is constructed with are its parameters."""

    def known(router: type[Router]) -> type[Router]:
        _MAKERS[name] = router
        return router

    return known


def router_names() -> list[str]:
    return sorted(_MAKERS)


def make_router(name: str, /, **parameters: Any) -> Router:
    """A router by its name, or by `package.module:Class`.

    Raises:
        ValueError: an unknown name or parameter, a value out of range, or nothing can be made of an import path.
    """
    try:
        return (_MAKERS.get(name) or imported("router", name, Router, router_names()))(**parameters)
    except TypeError as error:
        raise ValueError(f"router {name!r}: {error}") from None
