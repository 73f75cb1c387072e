"""Reports of agents over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from builders.usagereports import REPORT
from conformance.nodeusagesuite import NodeUsageSuite
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.clients.nodeusage import HttpUsage, real
from tessera.errors import InvalidInput
from tessera.processports import MetricsPort, serving_metrics


class TestHttpUsage(NodeUsageSuite):
    @pytest.fixture
    def answers(self) -> list[bytes]:
        return [write_usage(REPORT)]

    @pytest.fixture
    async def usages(self, answers: list[bytes]) -> AsyncIterator[HttpUsage]:
        async with serving_metrics(MetricsPort(port=0), bytes, lambda: answers[0]) as port:
            usages = HttpUsage([f"127.0.0.1:{port}"])
            yield usages
            await usages.close()

    @pytest.fixture
    def silence(self, answers: list[bytes]) -> Callable[[], object]:
        return lambda: answers.__setitem__(0, b"<html>")


@pytest.mark.anyio
async def test_what_is_no_agent_is_distinguished_from_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failed(address: str, deadline_s: float = 10) -> str:
        usages = HttpUsage([address], deadline_s=deadline_s)
        (error,) = (await usages.read()).silent
        await usages.close()
        assert "port-forward" in str(error)
        return str(error)

    async with serving_metrics(MetricsPort(port=0), bytes) as port:
        assert "HTTP 404" in await failed(f"http://127.0.0.1:{port}/")
    assert "127.0.0.1" in await failed(f"127.0.0.1:{port}")
    async with serving_metrics(MetricsPort(port=0), bytes, lambda: b" " * 100) as port:
        monkeypatch.setattr(real, "MOST_BYTES", 10)
        assert "more than 10 bytes" in await failed(f"127.0.0.1:{port}")
        assert "no answer in 0 s" in await failed(f"127.0.0.1:{port}", deadline_s=0)


@pytest.mark.parametrize("address", ["", "http://a:b", "ftp://a:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="address of a server"):
        HttpUsage([address])


def test_the_port_is_that_of_the_chart_where_none_is_given() -> None:
    urls: list[Any] = [real._url(each) for each in ("n1", "http://n1/", "n1:80", "[::1]:7")]
    assert urls == ["http://n1:9400", "http://n1:9400", "http://n1:80", "http://[::1]:7"]


@pytest.mark.anyio
async def test_an_agent_that_accepts_and_never_answers_delays_the_others_once() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with (
        serving_metrics(MetricsPort(port=0), bytes, lambda: write_usage(REPORT)) as port,
        await asyncio.start_server(silent, "127.0.0.1", 0) as server,
    ):
        addresses = [f"127.0.0.1:{each}" for each in (port, server.sockets[0].getsockname()[1])]
        usages = HttpUsage(addresses, deadline_s=3.0)
        first = await usages.read()
        assert (first.reports, len(first.silent)) == ((REPORT,), 1)
        for _ in range(3):
            with anyio.fail_after(2.0):
                assert str(await usages.read()) == str(first)
        await usages.close()
