"""The random load of running engines: what it loads."""

from __future__ import annotations

import httpx
import pytest

from serving.benchmark import soak
from serving.benchmark.soak import SoakError, engines_of


def client(*answers: list[dict[str, object]]) -> httpx.AsyncClient:
    """An endpoint whose engines are these, the last answer for good."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": left.pop(0) if len(left) > 1 else left[0]})

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://127.0.0.1:1/v1")


async def test_it_waits_for_engines_that_are_coming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_LOOK_S", 0.001)
    sick, well = {"id": "a", "healthy": False}, {"id": "a", "healthy": True}
    async with client([], [sick], [well, {"id": "b", "healthy": True}]) as http:
        assert await engines_of(http, 60) == ["a", "b"]


async def test_without_engines_nothing_is_called_right() -> None:
    async with client([]) as http:
        with pytest.raises(SoakError, match="no engine serves at"):
            await engines_of(http, 0)


async def test_an_endpoint_that_is_not_there_is_named() -> None:
    async with httpx.AsyncClient(base_url="http://127.0.0.1:1/v1") as http:
        with pytest.raises(SoakError, match=r"http://127\.0\.0\.1:1/v1/ cannot be reached"):
            await engines_of(http, 60)
