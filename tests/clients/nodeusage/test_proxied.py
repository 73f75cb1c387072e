"""Reports of a cluster's agents, by way of its API."""

from collections.abc import Callable

import msgspec
import pytest

from builders.usagereports import REPORT
from conformance.nodeusagesuite import NodeUsageSuite
from tessera.api.tessera.usage.usagereports import write_usage
from tessera.clients.kube import PODS, MemoryKube, Object
from tessera.clients.nodeusage import ProxiedUsage
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
HERE = "tessera-system"


def agent_pod(name: str, *, ready: str = "True", component: str = "agent") -> Object:
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": component}
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "namespace": HERE, "labels": labels}, "status": status}


@pytest.fixture
async def kube() -> MemoryKube:
    kube = MemoryKube()
    for each in (agent_pod("a"), agent_pod("starts", ready="False"), agent_pod("server", component="server")):
        await kube.create(PODS, each)
    kube.answers[HERE, "a"] = {(9400, "usage"): msgspec.json.decode(write_usage(REPORT))}
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
    kube.answers[HERE, "https:b"] = {(9400, "usage"): msgspec.json.decode(write_usage(REPORT))}
    assert await ProxiedUsage(kube).read() == (REPORT,)


async def test_what_is_no_report_and_who_may_not_ask_are_reported(kube: MemoryKube) -> None:
    usages = ProxiedUsage(kube)
    kube.answers[HERE, "a"] = {(9400, "usage"): {"node": 3}}
    with pytest.raises(Unavailable, match=r"agent tessera-system/a: it is not a report: Expected"):
        await usages.read()
    await kube.delete(PODS, "a", namespace=HERE)
    with pytest.raises(Unavailable, match="agents: no agent's pod is ready"):
        await usages.read()
    kube.withhold(HERE, PODS)
    with pytest.raises(Unavailable, match="tessera-usage-viewer"):
        await usages.read()
    await usages.close()
