"""The policies that a benchmark compares, by the names that suites and command lines use."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cache_actor.admission import make_controller
from cache_actor.admission.base import DEFAULT_CONTROLLER
from cache_actor.policies import make_policy
from serving.benchmark.routers import BENCHMARK_ROUTERS
from serving.routing import make_router

Forecasts = Literal["none", "uniform", "markov", "noisy", "oracle", "graph", "transitions", "tools", "predictor"]
Prefetch = Literal["off", "conservative", "aggressive"]

ROUTED_BY = ", "
_NOISY = re.compile(r"(lookahead|reuse)-noisy\(([0-9.]+)\)$")
_PREFETCH: dict[str, Prefetch] = {"+prefetch": "conservative", "+aggressive": "aggressive"}


class ContestantError(ValueError):
    """A name that no policy of a benchmark has; the message lists those that exist."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One policy of a benchmark.

    Attributes:
        backend: `sglang` is SGLang's own cache, untouched; `forecache` ours under `policy` and `parameters`.
        forecasts: where the value tables come from; `none`: there are none.
        noise: of `noisy` forecasts, the share of steps that name a wrong agent.
        prefetch: what is done with the forecasts beside ordering victims.
        session_refs: SGLang's own preference for evicting what no open session refers to.
        unlimited: nothing is ever evicted: the floor.
        coordinator: the whole system decides: coordinator and predictor run beside the engines, and nobody tells them
            the future. In a replay the predictor alone forecasts, in the place of both.
        trained: the predictor begins with what it has learned of other workflows of the kind, not with nothing.
        clairvoyant: victims by the true next use of every node (Belady), which only a replay can know.
        admission: what finds how many workflows run at once on an engine, and `admission_parameters` its parameters.
        router: what says where calls go, a name or an import path, and `router_parameters` its parameters; "": whatever
            the application has.
    """

    name: str
    backend: Literal["forecache", "sglang"] = "forecache"
    policy: str = "lru"
    parameters: dict[str, Any] = field(default_factory=dict)
    forecasts: Forecasts = "none"
    noise: float = 0.0
    prefetch: Prefetch = "off"
    session_refs: bool = False
    unlimited: bool = False
    clairvoyant: bool = False
    coordinator: bool = False
    trained: bool = False
    admission: str = "off"
    admission_parameters: dict[str, Any] = field(default_factory=dict)
    router: str = ""
    router_parameters: dict[str, Any] = field(default_factory=dict)


_SYSTEM = {
    "policy": "reuse",
    "forecasts": "predictor",
    "prefetch": "conservative",
    "coordinator": True,
    "admission": DEFAULT_CONTROLLER,
}
_PLAIN: dict[str, dict[str, Any]] = {
    "stock": {"backend": "sglang"},
    "session-refs": {"backend": "sglang", "session_refs": True},
    "lru": {"policy": "lru"},
    "lifecycle": {"policy": "lifecycle"},
    "lifecycle-strict": {"policy": "lifecycle", "parameters": {"strict": True}},
    "lookahead-uniform": {"policy": "lookahead", "forecasts": "uniform"},
    "lookahead-markov": {"policy": "lookahead", "forecasts": "markov"},
    "lookahead-oracle": {"policy": "lookahead", "forecasts": "oracle"},
    "steps": {"policy": "steps", "forecasts": "graph"},
    "survival": {"policy": "survival", "parameters": {"form": "additive"}, "forecasts": "transitions"},
    "cachescout": {"policy": "survival", "parameters": {"form": "multiplicative"}, "forecasts": "transitions"},
    "ttl": {"policy": "ttl", "forecasts": "tools"},
    "reuse": {"policy": "reuse"},
    "reuse-uniform": {"policy": "reuse", "forecasts": "uniform"},
    "reuse-markov": {"policy": "reuse", "forecasts": "markov"},
    "reuse-oracle": {"policy": "reuse", "forecasts": "oracle"},
    "forecache": _SYSTEM,
    "forecache-trained": _SYSTEM | {"trained": True},
    "belady": {"clairvoyant": True},
    "unlimited": {"policy": "lru", "unlimited": True},
}


def contestant_names() -> list[str]:
    """The names; `noisy(X)` stands for any share X of wrong steps from 0 to 1. See `contestant` for what may follow."""
    return [*_PLAIN, "lookahead-noisy(X)", "reuse-noisy(X)"]


def contestant(name: str) -> Contestant:
    """A policy by its name, which may end in `+prefetch` or, for the ablation, `+aggressive`.

    Before that, parameters may stand: `reuse-markov:guard=false:features=steps/uses`, lists by `/`. At the end may
    follow who is let in: `@16` for so many workflows at once on an engine, or `@miss-curve` for what finds the number,
    with its parameters (`@miss-curve:least=2`). And after a comma who
    says where calls go (`lru, session-hash`), with parameters likewise.

    Raises:
        ContestantError: there is no such policy, router or parameter, or it has no forecasts to prefetch by.
    """
    name, routed, router = name.partition(ROUTED_BY)
    if routed:
        return _with_router(contestant(name), router)
    policy, let_in, admission = name.partition("@")
    if let_in:
        return _with_admission(contestant(policy), name, admission)
    base = name
    prefetch: Prefetch | None = None
    for suffix, mode in _PREFETCH.items():
        if name.endswith(suffix):
            base, prefetch = name.removesuffix(suffix), mode
    base, *assigned = base.split(":")
    given = _PLAIN.get(base)
    if noisy := _NOISY.match(base):
        noise = float(noisy[2])
        if noise > 1:
            raise ContestantError(f"policy {name!r}: the share of wrong steps is {noise:g}; give one from 0 to 1")
        given = {"policy": noisy[1], "forecasts": "noisy", "noise": noise}
    if given is None:
        raise ContestantError(f"unknown policy {name!r}; choose from {', '.join(contestant_names())}")
    if assigned:
        given = given | {"parameters": given.get("parameters", {}) | dict(_parameter(name, one) for one in assigned)}
        try:
            make_policy(given.get("policy", "lru"), given["parameters"])
        except ValueError as error:
            raise ContestantError(f"policy {name!r}: {error}") from None
    if prefetch is None:
        return Contestant(name, **given)
    if given.get("forecasts") not in ("uniform", "markov", "oracle", "noisy"):
        raise ContestantError(f"policy {name!r}: only policies with a forecast have a next agent to prefetch for")
    return Contestant(name, **given, prefetch=prefetch)


def _with_admission(who: Contestant, name: str, admission: str) -> Contestant:
    finds, *assigned = admission.split(":")
    parameters = dict(_parameter(name, one) for one in assigned)
    if finds.isdigit():
        finds, parameters = "fixed", {"workflows": int(finds)} | parameters
    try:
        make_controller(finds, parameters)
    except (ValueError, TypeError) as error:
        raise ContestantError(f"policy {name!r}: {error}") from None
    return replace(who, name=name, admission=finds, admission_parameters=parameters)


def _with_router(who: Contestant, router: str) -> Contestant:
    name = f"{who.name}{ROUTED_BY}{router}"
    asked, *assigned = router.split(":")
    parameters = dict(_parameter(name, one) for one in assigned)
    path = BENCHMARK_ROUTERS.get(asked, asked)
    try:
        make_router(path, **parameters)
    except ValueError as error:
        raise ContestantError(f"policy {name!r}: {error}") from None
    return replace(who, name=name, router=path, router_parameters=parameters)


def _parameter(name: str, assigned: str) -> tuple[str, Any]:
    key, separator, value = assigned.partition("=")
    if not separator:
        raise ContestantError(f"policy {name!r}: {assigned!r} is no parameter; give key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value.replace("/", ",")
