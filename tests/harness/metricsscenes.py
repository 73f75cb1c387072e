"""The metrics of model servers of a cluster of this process, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from builders.measuredservers import autoscaler, deployment, model_pod
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.clients.kube import AUTOSCALERS, DEPLOYMENTS, EVENTS, PODS, MemoryKube
from tessera.clients.prometheus import MemoryMetrics
from tessera.errors import Unavailable
from tessera.log import logger
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.samples import ScrapedSamples
from tessera.server.metrics.servermetrics import ModelServerMetrics


class Scene:
    """A cluster in memory, its pods' metrics, a clock, and what is measured of its model servers."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.exposed = MemoryMetrics()
        self.now_s = 2000.0
        self.servers = ModelServerAutoscaler(self.kube, self.scraped(), logger(), now_s=lambda: self.now_s)

    @property
    def metrics(self) -> ModelServerMetrics:
        """What is served of them."""
        return ModelServerMetrics(self.servers, now_s=lambda: self.now_s)

    def scraped(self) -> ScrapedSamples:
        return ScrapedSamples(self.exposed, now_s=lambda: self.now_s)

    async def reconcile(self, *contents: bytes | Unavailable, seconds: float = 15.0) -> None:
        """Let time go by; then the pods 10.0.0.1, 10.0.0.2, ... expose these; reconcile."""
        self.now_s += seconds
        for number, content in enumerate(contents, 1):
            self.exposed.contents[f"http://10.0.0.{number}:8002/metrics"] = content
        await self.servers.reconcile()

    async def replicas(self) -> float:
        (series,) = await self.metrics.series(External(metric="tessera_replicas", namespace="ns"))
        return series.value

    async def pods(self, metric: str = "tessera_queue_time_seconds", **requested: Any) -> dict[str, float]:
        """Return a metric of pods by their names."""
        values = await self.metrics.values(
            Custom(version="v1beta1", resource="pods", namespace="ns", metric=metric, **requested)
        )
        return {each.name: each.value for each in values}

    async def events(self) -> list[tuple[str, str]]:
        return [(each["reason"], each["message"]) for each in (await self.kube.list(EVENTS)).objects]


@asynccontextmanager
async def scene(*objects: tuple[Any, dict[str, Any]], one: Scene | None = None) -> AsyncIterator[Scene]:
    """Give a scene whose objects are followed; the first pass is done."""
    one = one or Scene()
    for kind, each in objects:
        await one.kube.create(kind, each)
    task = asyncio.create_task(one.servers.run())
    await one.servers.passed.wait()
    assert not one.servers.waiting_for
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


WHOLE = (
    (DEPLOYMENTS, deployment(slots="4")),
    (AUTOSCALERS, autoscaler()),
    (PODS, model_pod("llm-1", address="10.0.0.1")),
    (PODS, model_pod("llm-2", address="10.0.0.2")),
)


DOWN = Unavailable("http://10.0.0.1:8002/metrics", found="no answer in 5 s", hint="check that it runs")
