"""What the page knows by Prometheus: asked while somebody looks, kept for a while, and trouble said once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import httpx2
import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu
from harness.refreshes import refreshed
from harness.servers import make_node, make_pod
from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.api.prometheus.gpuloads import load_queries
from tessera.api.prometheus.modelserverhistory import model_server_queries
from tessera.api.prometheus.usagehistory import history_queries
from tessera.clients.kube import MemoryKube
from tessera.clients.prometheus import MemoryMetrics, Prometheus
from tessera.errors import InvalidInput
from tessera.log import logger
from tessera.server.page import PrometheusMetrics
from tessera.server.run import Server
from tessera.server.settings import Page, ServerSettings

pytestmark = pytest.mark.anyio

URL = "http://prometheus:9090/prefix"


def answer(value: str) -> bytes:
    labels = {"namespace": "ml", "pod": "p", "container": "c", "pod_uid": "u", "UUID": "GPU-0"}
    series = {
        "metric": {**labels, "deployment": "llm", "serving_tessera_dev_server": "llm"},
        "value": [0, value],
        "values": [[0, value], [60, value]],
    }
    return json.dumps({"data": {"result": [series]}}).encode()


class Scene:
    """A Prometheus in memory, a clock, and what the page knows by them."""

    def __init__(self) -> None:
        self.now_s = 6000.0
        self.metrics = MemoryMetrics()
        self.connected = self.asked_for_weeks = 0
        self.broken = ""
        self.answers = asyncio.Event()
        self.answers.set()
        fast, patient = (Prometheus(url=f"{URL}/", connect=each) for each in (self.connect, self.connect_patiently))
        self.history = PrometheusMetrics(fast, patient, logger(), self._clock, self._clock)

    def _clock(self) -> float:
        return self.now_s

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryMetrics]:
        self.connected += 1
        if self.broken:
            raise InvalidInput("token", found=self.broken, expected="one")
        await self.answers.wait()
        yield self.metrics

    @asynccontextmanager
    async def connect_patiently(self) -> AsyncIterator[MemoryMetrics]:
        self.asked_for_weeks += 1
        if self.broken:
            raise InvalidInput("token", found=self.broken, expected="one")
        yield self.metrics

    async def refresh(self, value: str, seconds: float = 15.0) -> float | None:
        """Let time go by and look; return how busy the pod is then."""
        self.now_s += seconds
        self.answer_with(answer(value))
        return await self.again()

    def answer_with(self, content: bytes) -> None:
        requested = [
            *(f"query?{urlencode({'query': query})}" for query in load_queries().values()),
            *(f"query_range?{urlencode(each)}" for each in model_server_queries(self.now_s).values()),
        ]
        self.metrics.contents |= {f"{URL}/api/v1/{each}": content for each in requested}

    async def again(self) -> float | None:
        await refreshed(self.history)
        return {str(pod): percent for (_, pod), percent in self.history.measured.activity.items()}.get("ml/p")


async def test_it_asks_now_and_then_while_somebody_looks() -> None:
    one = Scene()
    assert (one.connected, await one.refresh("20")) == (0, 20)
    (server,) = one.history.measured.model_servers
    assert (server.namespace, server.name, len(server.points)) == ("ml", "llm", 2)
    assert (await one.refresh("30", seconds=14), one.connected) == (20, 1)
    assert (await one.refresh("30", seconds=1), one.connected) == (30, 2)


@pytest.mark.parametrize("trouble", ["no answer", "no token"])
async def test_without_an_answer_what_is_known_counts_for_two_minutes(trouble: str) -> None:
    one = Scene()
    await one.refresh("20")
    with capture_logs() as logs:
        for _ in range(7):
            one.now_s += 15
            one.metrics.contents = {}
            one.broken = "none" if trouble == "no token" else ""
            assert await one.again() == 20
        one.now_s += 15
        assert await one.again() is None
        assert one.history.measured.model_servers == ()
    assert [each["event"] for each in logs] == ["history_not_read"]
    one.broken = ""
    assert await one.refresh("40") == 40


async def test_an_answer_that_is_none_is_said() -> None:
    one = Scene()
    await one.refresh("20")
    one.now_s += 15
    one.answer_with(b"<html>")
    with capture_logs() as logs:
        assert await one.again() == 20
    (said,) = logs
    assert said["event"] == "history_not_read"
    assert said["reason"].startswith(f"Prometheus {URL}: ")


def week(peak_mib: str) -> dict[str, bytes]:
    """Return the answers about a week in which one container was allocated 8 GiB of a GPU."""
    labels = {"hostname": "a", "gpu": "0", "UUID": "u", "modelName": "Tesla T4"}
    labels |= {"namespace": "ml", "pod": "p", "container": "main", "exclusive": "false", "part": "memory"}
    values = {
        "allocated_mib": "8192",
        "peak_mib": peak_mib,
        "mean_percent": "5",
        "observed_s": "7200",
        "load_observed_s": "7200",
    }
    bodies = {name: {"data": {"result": [{"metric": labels, "value": [0, text]}]}} for name, text in values.items()}
    queries = {
        name: f"{URL}/api/v1/query?{urlencode({'query': query})}" for name, query in history_queries("7d").items()
    }
    return {queries[name]: json.dumps(body).encode() for name, body in bodies.items()}


async def test_a_week_is_judged_now_and_then_and_nothing_waits_for_it() -> None:
    one = Scene()

    async def advice(seconds: float) -> list[tuple[str, str]]:
        await one.refresh("20", seconds)
        return [(each.pod, each.fits) for each in one.history.measured.recommendations]

    one.metrics.contents |= week("1000")
    assert (await advice(15), one.asked_for_weeks) == ([("p", "2 GiB")], 1)
    one.metrics.contents |= week("3000")
    assert (await advice(599), one.asked_for_weeks) == ([("p", "2 GiB")], 1)
    assert (await advice(1), one.asked_for_weeks) == ([("p", "4 GiB")], 2)
    one.metrics.contents = {}
    with capture_logs() as logs:
        for _ in range(5):
            assert await advice(600) == [("p", "4 GiB")], "what was judged before stays"
        assert await advice(600) == [], "for an hour"
    assert [each["event"] for each in logs] == ["recommendations_not_read"]


async def test_the_page_shows_what_is_known_and_each_viewer_their_namespaces() -> None:
    one, kube = Scene(), MemoryKube()
    for name in ("ann", "bob"):
        kube.accounts.add(name, ReviewedUser(username=name))
    kube.accounts.allow("ann", "list", "pods", ["ml"])
    kube.accounts.allow("bob", "list", "nodes")
    await make_node(kube, "a", gpu(0))
    await make_pod(kube, "p", {"tessera.dev/gpu-memory": 4}, metadata={"namespace": "ml"})
    one.answer_with(answer("20"))
    settings = ServerSettings(port=0, page=Page(port=0, sign_in=True))
    server = Server(settings, kube, metrics=one.history)
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(20):
        await server.synced()
        seen = dict[str, list[dict[str, str]]]()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.page_port}") as client:
            for name in ("ann", "bob"):
                headers = {"Authorization": f"Bearer {name}"}
                while name not in seen or (name == "ann" and not seen[name]):
                    seen[name] = (await client.get("/api/fleet", headers=headers)).json().get("modelServers", [])
        server.stop()
        await running
    assert [(each["namespace"], each["name"]) for each in seen["ann"]] == [("ml", "llm")]
    assert seen["bob"] == []


async def test_the_page_does_not_wait_for_a_slow_prometheus() -> None:
    one, kube = Scene(), MemoryKube()
    one.answers.clear()
    await make_node(kube, "a", gpu(0))
    server = Server(ServerSettings(port=0, page=Page(port=0, sign_in=False)), kube, metrics=one.history)
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(20):
        await server.synced()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.page_port}") as client:
            assert [each["name"] for each in (await client.get("/api/fleet")).json()["nodes"]] == ["a"]
        server.stop()
        await running
    assert one.connected == 1
