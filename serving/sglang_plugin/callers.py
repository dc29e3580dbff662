"""Who uses the cache: the caller of a request, and the uses of the tree's paths, told to ledger and learning."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving.sglang_plugin.counters import POLICY_NS
from serving.sglang_plugin.entries import Owner
from serving.sglang_plugin.recorder import identity_of
from serving.sglang_plugin.uses import Use

if TYPE_CHECKING:
    from serving.sglang_plugin.cache import ForecacheCache


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is, in the ledger's terms; without an owner, nobody's in particular."""

    owner: Owner | None
    use: Use
    final: bool


class Callers:
    """The callers of a cache."""

    def __init__(self, cache: ForecacheCache) -> None:
        self._cache = cache

    def of(self, req: Any) -> Caller:
        """Who makes the request, settled at its first touch: a workflow that ends meanwhile is not revived by it."""
        try:
            caller: Caller = req.forecache_caller
        except AttributeError:
            identity = identity_of(req.kv_hints)
            caller = (
                self.named(identity.workflow, identity.agent, identity.final)
                if identity is not None
                else self.unnamed()
            )
            req.forecache_caller = caller
            self._cache.show_call(req, identity)
            if identity is not None:
                self._cache.tables.called(identity.workflow)
        return caller

    def named(self, workflow: str, agent: str, final: bool = False) -> Caller:
        """A new call of a workflow."""
        cache = self._cache
        owner = cache.ledger.owner(workflow)
        owner.calls_as(agent)
        cache.moved(owner)
        return Caller(owner, Use(cache.clock(), agent, step=owner.calls), final)

    def unnamed(self) -> Caller:
        """A new call of nobody in particular."""
        return Caller(None, Use(self._cache.clock()), final=False)

    def touch(self, node: Any, caller: Caller, generated: bool = False) -> None:
        """A call uses the path to a node; `generated`: what is new of it is output."""
        begin = time.perf_counter_ns()
        self._touch(node, caller, generated)
        self._cache.counters[POLICY_NS] += time.perf_counter_ns() - begin

    def _touch(self, node: Any, caller: Caller, generated: bool) -> None:
        cache, owner, use = self._cache, caller.owner, caller.use
        ledger, learning = cache.ledger, cache.learning
        use.at = cache.clock()
        path = _path(node) if learning is not None else []
        known_before = cache.returns.cut(path)
        if learning is not None:
            path = _path(node) if known_before else path
            learning.used(one for one in path if one.entry.use is not use)
        if owner is None:
            ledger.touch_unnamed(node, use, generated)
        elif owner.ended:
            ledger.touch_ended(node, owner, use)
        else:
            use.bit = ledger.bit(use.agent)
            ledger.touch(node, owner, use, generated)
        for piece, memory in known_before:
            ledger.recall(piece, memory)
        if path:
            cache.victims.lowered(path)


def _path(node: Any) -> list[Any]:
    """From a node up to the root, without it."""
    path: list[Any] = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path
