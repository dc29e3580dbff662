"""What it costs a proxy to find the ingress of a request."""

from __future__ import annotations

import pickle
import random
import statistics
import time
from typing import Any

from ray.serve._private.common import StreamingHTTPRequest

from serving.benchmark.budgets import Budget, Figures
from serving.config import IdentityConfig
from serving.identity import header_sources
from serving.ingress_choice import RequestKeys, ranks

BUDGETS = (
    Budget("ingress_p50_us", "µs of processor time, which ingress a request goes to, median", 200),
    Budget("ingress_p99_us", "µs, 99th percentile", 200),
)
INGRESSES = 8
# What OpenAI's client for Python sends.
_HEADERS = {
    "host": "127.0.0.1:8000",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "accept": "application/json",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 2.8.0",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "2.8.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.9",
    "authorization": "Bearer none",
    "x-stainless-async": "false",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
    "content-length": "11834",
}
# How workflows are named: our header, the last of the vendors' that is looked at, baggage, and not at all.
_NAMED = ("x-workflow-id: {}", "x-opencode-session: {}", "baggage: gen_ai.conversation.id={}", "x-tool: {}")
_ID_BITS = 128


def measure(decisions: int, seed: int = 1) -> Figures:
    """From the bytes that Ray Serve's proxy sends on to the order of ingresses."""
    rng = random.Random(seed)
    keys = RequestKeys([(names.session, names.child) for _, names in header_sources(IdentityConfig())])
    ingresses = [f"{rng.getrandbits(40):08x}" for _ in range(INGRESSES)]
    decided = sorted(_decision(keys, ingresses, _request(rng)) for _ in range(decisions))
    return {
        "ingress_p50_us": 1e6 * statistics.median(decided),
        "ingress_p99_us": 1e6 * decided[int(0.99 * len(decided))],
    }


def _decision(keys: RequestKeys, ingresses: list[str], sent: bytes) -> float:
    """Seconds of processor time that a decision takes."""
    begin = time.thread_time()
    ranks(keys.key(pickle.loads(sent).asgi_scope), ingresses, ingresses, ())
    return time.thread_time() - begin


def _request(rng: random.Random) -> bytes:
    name, value = rng.choice(_NAMED).format(f"{rng.getrandbits(_ID_BITS):032x}").split(": ")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 40000),
        "scheme": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(key.encode(), text.encode()) for key, text in (_HEADERS | {name: value}).items()],
        "state": {},
    }
    return pickle.dumps(StreamingHTTPRequest(scope, proxy_actor_name="SERVE_PROXY_ACTOR-" + "0" * 56))
