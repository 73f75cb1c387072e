"""Reports of a cluster's agents, by way of its API."""

import asyncio
from collections.abc import Callable

import pytest

from builders.usagereports import REPORT
from conformance.nodeusagesuite import NodeUsageSuite
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.clients.kube import PODS, MemoryKube, Object
from tessera.clients.nodeusage import NodeReports, ProxiedUsage
from tessera.clients.nodeusage.protocol import MOST_BYTES
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
HERE = "tessera-system"


def agent_pod(name: str, *, ready: str = "True", component: str = "agent", node: str = "n1") -> Object:
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": component}
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {
        "metadata": {"name": name, "namespace": HERE, "labels": labels},
        "spec": {"nodeName": node},
        "status": status,
    }


@pytest.fixture
async def kube() -> MemoryKube:
    kube = MemoryKube()
    for each in (agent_pod("a"), agent_pod("server", component="server")):
        await kube.create(PODS, each)
    kube.answers[HERE, "a"] = {(9400, "usage"): write_usage(REPORT)}
    return kube


class TestProxiedUsage(NodeUsageSuite):
    @pytest.fixture
    def usages(self, kube: MemoryKube) -> ProxiedUsage:
        return ProxiedUsage(kube)

    @pytest.fixture
    def silence(self, kube: MemoryKube) -> Callable[[], object]:
        return kube.answers.clear


async def test_an_agent_whose_metrics_are_answered_over_tls(kube: MemoryKube) -> None:
    pod = agent_pod("b")
    pod["metadata"]["annotations"] = {"prometheus.io/scheme": "https"}
    await kube.delete(PODS, "a", namespace=HERE)
    await kube.create(PODS, pod)
    kube.answers[HERE, "https:b"] = {(9400, "usage"): write_usage(REPORT)}
    assert await ProxiedUsage(kube).read() == NodeReports((REPORT,))


async def test_an_agent_that_is_not_ready_is_left_out_and_named(kube: MemoryKube) -> None:
    await kube.create(PODS, agent_pod("starts", ready="False", node="n7"))
    await kube.create(PODS, agent_pod("waits", ready="False", node=""))
    found = await ProxiedUsage(kube).read()
    assert found.some() == (REPORT,)
    assert [each.partition(": see")[0] for each in sorted(map(str, found.silent))] == [
        "agent tessera-system/starts: its pod on node n7 is not ready",
        "agent tessera-system/waits: its pod is not ready",
    ]


async def test_an_agent_is_believed_for_its_own_node_alone(kube: MemoryKube) -> None:
    await kube.create(PODS, agent_pod("b", node="n2"))
    kube.answers[HERE, "b"] = kube.answers[HERE, "a"]
    found = await ProxiedUsage(kube).read()
    assert found.reports == (REPORT,)
    (error,) = found.silent
    assert str(error).startswith("agent tessera-system/b: it reports node 'n1', but its pod is on node n2: ")


async def test_a_node_without_an_agent_pod_is_named(kube: MemoryKube) -> None:
    assert (await ProxiedUsage(kube, node="n1").read()).reports == (REPORT,)
    with pytest.raises(Unavailable, match=r"^node n2: no agent pod runs on it: kubectl get nodes"):
        await ProxiedUsage(kube, node="n2").read()


async def test_an_agent_that_ends_is_not_missed(kube: MemoryKube) -> None:
    pod = agent_pod("ends", ready="False")
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.example/b"]}
    await kube.create(PODS, pod)
    assert await ProxiedUsage(kube).read() == NodeReports((REPORT,))


async def test_a_report_that_is_too_large_is_not_read(kube: MemoryKube) -> None:
    kube.answers[HERE, "a"] = {(9400, "usage"): write_usage(REPORT) + b" " * MOST_BYTES}
    with pytest.raises(Unavailable, match=f"agent tessera-system/a: an answer of more than {MOST_BYTES} bytes"):
        (await ProxiedUsage(kube).read()).some()


async def test_requests_are_answered_while_a_large_report_is_read(kube: MemoryKube) -> None:
    """The server's event loop binds pods, too."""
    device = DeviceReport(containers=(ContainerReport(namespace="n", pod="p", container="c"),))
    large = UsageReport(node="n1", gpus=(GpuReport(index=0, devices=(device,) * 5000),))
    kube.answers[HERE, "a"] = {(9400, "usage"): write_usage(large)}
    reading, turns = asyncio.create_task(ProxiedUsage(kube).read()), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await reading).reports == (large,)
    assert turns > 20  # where it blocks, it is a handful


async def test_what_is_no_report_and_who_may_not_ask_are_reported(kube: MemoryKube) -> None:
    usages = ProxiedUsage(kube)
    kube.answers[HERE, "a"] = {(9400, "usage"): b'{"node": 3}'}
    with pytest.raises(Unavailable, match=r"agent tessera-system/a: it is not a report \("):
        (await usages.read()).some()
    await kube.delete(PODS, "a", namespace=HERE)
    with pytest.raises(Unavailable, match="agents: no agent pod exists"):
        await usages.read()
    kube.withhold(HERE, PODS)
    with pytest.raises(Unavailable, match="tessera-usage-viewer"):
        await usages.read()
    await usages.close()
