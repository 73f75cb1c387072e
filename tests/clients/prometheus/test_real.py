"""Metrics over HTTP: servers that answer too much, too late, elsewhere, or nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conformance.metricssuite import CONTENT, MetricsSuite
from harness.httpserver import Asked, Server, answer, chunked, serving
from tessera.clients.prometheus import AnswerTooLarge, HttpMetrics, MetricsClient
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    def play(requested: Asked) -> bytes:
        return answer(CONTENT) if requested.target == "/metrics?a=b" else answer(b"no such page", "404 Not Found")

    async with serving(play) as server:
        yield server


@pytest.fixture
async def metrics() -> AsyncIterator[HttpMetrics]:
    async with HttpMetrics(most_bytes=1000, deadline_s=5) as client:
        yield client


class TestHttpMetrics(MetricsSuite):
    @pytest.fixture
    def url(self, server: Server) -> str:
        return f"{server.url}/metrics?a=b"

    @pytest.fixture
    def metrics(self, metrics: HttpMetrics) -> MetricsClient:
        return metrics


async def test_a_connection_is_kept_until_it_is_not(server: Server, metrics: HttpMetrics) -> None:
    for _ in range(2):
        await metrics.get(f"{server.url}/metrics?a=b")
    await metrics.keep(frozenset({server.url}))
    await metrics.get(f"{server.url}/metrics?a=b")
    assert server.connections == 1
    await metrics.keep(frozenset())
    await metrics.get(f"{server.url}/metrics?a=b")
    assert server.connections == 2


async def test_what_a_refusal_says_is_shown(server: Server, metrics: HttpMetrics) -> None:
    with pytest.raises(Unavailable, match="HTTP 404, 'no such page': check the address"):
        await metrics.get(server.url)


BODIES = {
    "too much at once": (answer(b"a" * 1001), "more than 1000 bytes"),
    "too much in pieces": (chunked(*[b"a" * 100] * 11), "more than 1000 bytes"),
    "too much to compute": (b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 0\r\n\r\n", "HTTP 422"),
    "a redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
    "not HTTP": (b"SSH-2.0-server\r\n\r\n", "check that it runs"),
}


@pytest.mark.parametrize("case", BODIES)
async def test_what_is_no_answer(metrics: HttpMetrics, case: str) -> None:
    raw, want = BODIES[case]
    async with serving(lambda _: raw) as server:
        with pytest.raises(Unavailable, match=want) as caught:
            await metrics.get(f"{server.url}/metrics")
    assert isinstance(caught.value, AnswerTooLarge) is case.startswith("too much")


async def test_a_server_that_does_not_answer() -> None:
    forever = asyncio.Event()

    async def play(_: Asked) -> bytes:
        await forever.wait()
        return answer()

    async with serving(play) as server, HttpMetrics(deadline_s=0.05) as metrics:
        with pytest.raises(Unavailable, match=r"no answer in 0.05 s: check that it runs"):
            await metrics.get(f"{server.url}/metrics")
        forever.set()


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://", "http://[1/", "/metrics"])
async def test_an_address_that_is_none(metrics: HttpMetrics, url: str) -> None:
    with pytest.raises(InvalidInput, match="address"):
        await metrics.get(url)


async def test_nobody_listens(metrics: HttpMetrics) -> None:
    with pytest.raises(Unavailable, match="check that it runs"):
        await metrics.get("http://127.0.0.1:1/metrics")
