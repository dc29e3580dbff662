"""Where the calls go: applications that the driver starts by its own config, or an endpoint that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from cache_actor.messages import EnginePlan, EngineReport, decode, encode
from serving.benchmark.driver.points import Variant
from serving.calls import EngineQuery

ENGINE = "EngineReplica"
ASK_LIMIT_S = 30.0
FLUSH_LIMIT_S = 30.0
FLUSH_PERIOD_S = 0.1
# Engines tell the coordinator at least once a second how they are, and it tells ingresses several times a second.
HEARD_LIMIT_S = 15.0
# A coordinator that plans at the same time goes on from the number that was applied, so that it does not race for long.
SWITCH_ATTEMPTS = 10
# What a Ray runtime of our own claims to have: engines share the machine's cores, whatever Ray counts.
LOGICAL_CPUS = 16


class EnginesError(RuntimeError):
    """Engines that cannot be started, reached or emptied: says which and what to do."""


@dataclass(slots=True)
class Target:
    """A running application. `url` ends in `/v1/`; `handle` is that of its engines."""

    name: str
    url: str
    model: str
    handle: Any
    warm: bool = False

    async def engines(self, http: httpx.AsyncClient) -> list[dict[str, Any]]:
        """`data` of GET /v1/engines. Raises EnginesError."""
        try:
            reply = await http.get("engines", timeout=ASK_LIMIT_S)
            reply.raise_for_status()
            found: list[dict[str, Any]] = reply.json()["data"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise EnginesError(f"{self.url}engines does not answer: {type(error).__name__}: {error}") from error
        return found

    async def coordinator(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """GET /v1/coordinator. Raises EnginesError."""
        return await self._ask(http, "GET", "coordinator")

    @contextlib.asynccontextmanager
    async def without_coordinator(self, http: httpx.AsyncClient) -> AsyncIterator[None]:
        """Meanwhile a coordinator, if there is one, sends no plans. Raises EnginesError."""
        try:
            reply = await http.get("coordinator", timeout=ASK_LIMIT_S)
        except httpx.HTTPError as error:
            raise EnginesError(f"{self.url}coordinator does not answer: {type(error).__name__}: {error}") from error
        if reply.status_code == httpx.codes.NOT_FOUND:
            yield
            return
        mode = (await self.coordinator(http))["mode"]
        await self._ask(http, "POST", "coordinator", {"mode": "off"})
        try:
            yield
        finally:
            await self._ask(http, "POST", "coordinator", {"mode": mode})

    async def find_limits_anew(self, http: httpx.AsyncClient) -> None:
        """What was found of how many workflows the engines can carry is forgotten. Raises EnginesError."""
        for mode in ("off", "on"):
            await self._ask(http, "POST", "coordinator", {"mode": mode})

    async def route_by(self, http: httpx.AsyncClient, router: str, parameters: dict[str, Any]) -> None:
        """Another router decides from now on, a new one that remembers nothing. Returns when it has heard of all
        engines since. Raises EnginesError."""
        start = time.monotonic()
        status = await self._ask(http, "POST", "router", {"name": router, "parameters": parameters})
        while any(
            one["snapshot_age_s"] is None or one["snapshot_age_s"] > time.monotonic() - start
            for one in status["engines"]
        ):
            if time.monotonic() - start > HEARD_LIMIT_S:
                raise EnginesError(f"the ingress of {self.url} hears nothing of its engines: does a coordinator run?")
            await asyncio.sleep(FLUSH_PERIOD_S)
            status = await self._ask(http, "GET", "router")

    async def _ask(self, http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            reply = await http.request(method, path, json=body, timeout=ASK_LIMIT_S)
            if reply.status_code == httpx.codes.BAD_REQUEST:
                raise EnginesError(f"{self.url}{path}: {reply.json()['error']['message']}")
            reply.raise_for_status()
            said: dict[str, Any] = reply.json()
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise EnginesError(f"{self.url}{path} does not answer: {type(error).__name__}: {error}") from error
        return said

    async def send(self, engine: str, plan: EnginePlan) -> EngineReport:
        report = decode(await self.handle.sync_plan.remote(EngineQuery(engine), encode(plan)))
        assert isinstance(report, EngineReport)
        return report

    async def switch(self, engine: str, plan: EnginePlan) -> EngineReport:
        """Sends a plan that must be applied, under a higher number if a coordinator was faster; the last report."""
        report = await self.send(engine, plan)
        for _ in range(SWITCH_ATTEMPTS):
            if report.accepted or report.applied < plan.plan:
                break
            plan = replace(plan, plan=report.applied + 1)
            report = await self.send(engine, plan)
        return report

    async def flush(self, engine: str) -> None:
        """Empties an engine's cache, which has to become idle for it. Raises EnginesError."""
        deadline = time.monotonic() + FLUSH_LIMIT_S
        while not await self.handle.flush.remote(EngineQuery(engine)):
            if time.monotonic() > deadline:
                raise EnginesError(
                    f"engine {engine} has not become idle for {FLUSH_LIMIT_S:g} s, so its cache cannot be emptied: "
                    "is anybody else using it?"
                )
            await asyncio.sleep(FLUSH_PERIOD_S)

    async def close_sessions(self, engine: str, sessions: list[str]) -> None:
        await self.handle.close_sessions.remote(EngineQuery(engine), sessions)


class Fleet:
    """Applications of our own, started when they are needed; the longest unused goes when there are too many.

    A context manager: it starts a Ray runtime, or uses the one that RAY_ADDRESS names (in a Ray job it does).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._targets: OrderedDict[str, tuple[Variant, Target]] = OrderedDict()
        self._numbers = itertools.count(1)
        self._ours = False
        self._port = 0

    def __enter__(self) -> Fleet:
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(address="auto", namespace="serve", **quiet)
        else:
            ray.init(address="local", num_cpus=LOGICAL_CPUS, include_dashboard=False, namespace="serve", **quiet)
            self._ours = True
        self._port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": self._port}, logging_config={"log_level": "ERROR"})
        if not self._ours:
            from ray.serve.context import _get_global_client

            self._port = _get_global_client().http_config.port
        return self

    def __exit__(self, *exception: object) -> None:
        import ray
        from ray import serve

        try:
            for _, target in self._targets.values():
                serve.delete(target.name)
        finally:
            self._targets.clear()
            ray.shutdown()  # a runtime of our own ends with it, and its Serve

    def runs(self, variant: Variant) -> bool:
        return any(known == variant for known, _ in self._targets.values())

    def target(self, variant: Variant) -> Target:
        """The application of a variant, started if it does not run; some 25 s then.

        Raises:
            EnginesError: it does not come up.
        """
        for key, (known, target) in self._targets.items():
            if known == variant:
                self._targets.move_to_end(key)
                return target
        while len(self._targets) >= self._most:
            self._stop(next(iter(self._targets)))
        return self._start(variant)

    def _start(self, variant: Variant) -> Target:
        from ray import serve

        from serving.app import build_app
        from serving.engine_args import EngineArgumentError

        name = f"bench-{next(self._numbers)}-{variant.name}"
        try:
            serve.run(build_app(variant.config), name=name, route_prefix=f"/{name}")
        except EngineArgumentError as error:
            raise EnginesError(f"app: {error}") from error
        except RuntimeError as error:
            serve.delete(name)
            raise EnginesError(f"the engines of {variant.name!r} did not start: {error}") from error
        except KeyboardInterrupt:
            serve.delete(name)
            raise
        target = Target(
            name,
            f"http://127.0.0.1:{self._port}/{name}/v1/",
            variant.config.model.served_name,
            serve.get_deployment_handle(ENGINE, name),
        )
        self._targets[name] = variant, target
        return target

    def _stop(self, name: str) -> None:
        from ray import serve

        serve.delete(name)
        del self._targets[name]


class RunningEndpoint:
    """An endpoint that runs already, on the Ray cluster of this machine: all policies of our cache go to it.

    A context manager.

    Args:
        url: with or without its `/v1`.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/"
        self._target: Target | None = None

    def __enter__(self) -> RunningEndpoint:
        import ray
        from ray import serve

        try:
            model, engine = self._get("models")["id"], self._get("engines")["id"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError) as error:
            raise EnginesError(
                f"no Forecache with an engine at {self._url} ({type(error).__name__}: {error}): start one with "
                "`serve run configs/laptop.yaml`"
            ) from error
        remedy = (
            "plans, and the word to empty the cache, go through Ray: run this on a machine of the endpoint's cluster, "
            "with RAY_AUTH_MODE=token if `serve run` started it, and with RAY_ADDRESS if there are several clusters"
        )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        try:
            ray.init(address="auto", namespace="serve", log_to_driver=False, logging_level="ERROR")
            handles = {
                name: serve.get_deployment_handle(ENGINE, name)
                for name, application in serve.status().applications.items()
                if ENGINE in application.deployments
            }
            # For an engine that is not its own another of the application answers.
            found = [
                (name, handle)
                for name, handle in handles.items()
                if handle.status.remote(EngineQuery(engine)).result(timeout_s=ASK_LIMIT_S)["id"] == engine
            ]
        except Exception as error:  # Ray raises a family of unrelated types
            raise EnginesError(f"{self._url} answers, but not its Ray cluster ({error}); {remedy}") from error
        if not found:
            raise EnginesError(f"the Ray cluster that was found has not the engines of {self._url}; {remedy}")
        self._target = Target(found[0][0], self._url, model, found[0][1])
        return self

    def _get(self, what: str) -> Any:
        """The first of a list that the endpoint gives."""
        reply = httpx.get(f"{self._url}{what}", timeout=ASK_LIMIT_S)
        reply.raise_for_status()
        return reply.json()["data"][0]

    def __exit__(self, *exception: object) -> None:
        import ray

        ray.shutdown()

    def runs(self, variant: Variant) -> bool:
        return True

    def target(self, variant: Variant | None = None) -> Target:
        assert self._target is not None
        return self._target


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
