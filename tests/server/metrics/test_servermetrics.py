"""What the metrics APIs get of model servers in memory."""

import pytest

from builders.measuredservers import SERVER, autoscaler, deployment, triton
from harness.metricsscenes import WHOLE, Scene, scene
from tessera.api.kubernetes.labelselectors import read_selector
from tessera.api.kubernetes.metrics.paths import External
from tessera.clients.kube import AUTOSCALERS, DEPLOYMENTS
from tessera.errors import Unavailable
from tessera.server.metrics.sources import MetricAbsent

pytestmark = pytest.mark.anyio


async def test_what_is_measured() -> None:
    async with scene(*WHOLE) as one:
        await one.reconcile(triton(ended=100), triton(ended=100))
        await one.reconcile(
            triton(ended=110, queued_s=5, served_s=30, waiting=3), triton(ended=130, queued_s=3, served_s=15)
        )
        assert await one.pods() == {"llm-1": 0.5, "llm-2": 0.1}
        assert await one.pods("avg_time_queue_us") == {"llm-1": 500_000, "llm-2": 100_000}
        assert await one.pods("tessera_requests_waiting") == {"llm-1": 3, "llm-2": 0}
        assert await one.pods("tessera_requests_in_flight", name="llm-1") == {"llm-1": 5}
        assert await one.pods(selector=read_selector(f"{SERVER}=llm", "s")) == {"llm-1": 0.5, "llm-2": 0.1}
        for metric, want in (("queue_time_seconds", 0.2), ("requests_waiting", 3), ("requests_in_flight", 6)):
            (series,) = await one.metrics.series(External(metric=f"tessera_{metric}", namespace="ns"))
            assert series.value == pytest.approx(want)
            assert series.labels == {SERVER: "llm"}


async def test_what_is_served() -> None:
    async with scene() as one:
        assert ("pods", "avg_time_queue_us") in one.metrics.custom()
        assert "tessera_replicas" in one.metrics.external()


async def test_a_selector_that_selects_no_pod_has_a_reason() -> None:
    async with scene(*WHOLE) as one:
        await one.reconcile(triton(ended=1), triton(ended=1))
        with pytest.raises(MetricAbsent, match="no such running pod has the label"):
            await one.pods(selector=read_selector("a=b", "s"))


async def test_reasons_of_many_servers_are_cut() -> None:
    async with scene(*((DEPLOYMENTS, deployment(f"llm-{number}")) for number in range(7))) as one:
        await one.reconcile()
        with pytest.raises(MetricAbsent, match=r"llm-0: .*; llm-4: [^;]*; 2 more servers: check the pods"):
            await one.replicas()


async def test_a_sum_without_one_of_its_servers_is_not_served() -> None:
    other = ((DEPLOYMENTS, deployment("other", slots="4")), (AUTOSCALERS, autoscaler("other")))
    async with scene(*WHOLE, *other) as one:
        for ended in (100, 110):
            await one.reconcile(triton(ended=ended), triton(ended=ended))
        with pytest.raises(MetricAbsent, match=r"requests_in_flight .*: other: "):
            await one.metrics.series(External(metric="tessera_requests_in_flight", namespace="ns"))
        selected = External(
            metric="tessera_requests_in_flight", namespace="ns", selector=read_selector(f"{SERVER}=llm", "s")
        )
        assert len(await one.metrics.series(selected)) == 1


async def test_old_measurements_are_not_served() -> None:
    one = Scene()
    with pytest.raises(Unavailable, match="nothing was measured yet"):
        await one.replicas()
    async with scene(*WHOLE) as one:
        await one.reconcile(triton(ended=1), triton(ended=1))
        one.now_s += 61
        with pytest.raises(Unavailable, match="last measured 61 s ago"):
            await one.pods()
