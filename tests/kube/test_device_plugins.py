"""The transport of device plugins against a real kubelet: what the kubelet in memory promises holds there too."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from harness.plugins import RESOURCE, ScriptedPlugin, connect, devices
from kube.pods import busybox, environment, remove, run, until_allocatable
from tessera.clients.kubelet import PodResources
from tessera.errors import Conflict
from testbed.cluster import Cluster
from testbed.node import Node

pytestmark = pytest.mark.anyio

CDI = {
    "cdiVersion": "0.6.0",
    "kind": "tessera.dev/gpu",
    "devices": [{"name": "0", "containerEdits": {"env": ["BY_CDI=yes"]}}],
}


@pytest.fixture
def cdi(node: Node) -> None:
    """Write the file that explains the CDI device which the scripted plugin answers."""
    folder = node.path("/var/run/cdi")
    folder.mkdir(exist_ok=True)
    (folder / "scripted.json").write_text(json.dumps(CDI))


@pytest.fixture(autouse=True)
def no_pods(node_cluster: Cluster) -> Iterator[None]:
    """Remove the pods of each test, also of one that failed."""
    yield
    remove(node_cluster)


@pytest.mark.usefixtures("cdi")
async def test_a_pod_gets_what_the_plugin_prefers_and_answers(node_cluster: Cluster, node: Node) -> None:
    plugin = ScriptedPlugin("a", "b", "c")
    server = await connect(plugin, node.device_plugins)
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 3)])
    await asyncio.to_thread(run, node_cluster, busybox("two", limits={RESOURCE: 2}))
    got = await asyncio.to_thread(environment, node_cluster, "two")
    assert (got["IDS"], got["BY_CDI"]) in {("a,b", "yes"), ("b,a", "yes")}
    called = [(name, tuple(sorted(what)) if isinstance(what, tuple) else what) for name, what in plugin.requested]
    assert called[:3] == [("prefer", 2), ("allocate", ("a", "b")), ("pre_start", ("a", "b"))]
    held = await PodResources(node.pod_resources).list()
    assert [(one.pod, one.container, one.resource, one.device_ids) for one in held] == [
        ("two", "main", RESOURCE, ("a", "b"))
    ]
    plugin.push(*devices("a", "b", "c", unhealthy=("c",)))
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 2)])
    await server.stop()


@pytest.mark.usefixtures("cdi")
async def test_a_restart_of_the_kubelet_removes_sockets_and_keeps_what_pods_hold(
    node_cluster: Cluster, node: Node
) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, node.device_plugins)
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 2)])
    await asyncio.to_thread(run, node_cluster, busybox("stays", limits={RESOURCE: 1}))
    before = await PodResources(node.pod_resources).list()
    await asyncio.to_thread(node.restart_kubelet)
    assert not server.reachable
    await server.stop()
    again = await connect(plugin, node.device_plugins)
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 2)])
    # A kubelet that has just started answers before it has read which pods there are, and then shows none.
    for _ in range(600):
        if await PodResources(node.pod_resources).list() == before:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the kubelet forgot what the pod holds")
    status = (await asyncio.to_thread(node_cluster.get, "pod", "stays"))["status"]["containerStatuses"][0]
    assert (status["restartCount"], status["ready"]) == (0, True)
    await again.stop()


async def test_a_refusal_is_shown_on_the_pod(node_cluster: Cluster, node: Node) -> None:
    plugin = ScriptedPlugin("a")
    plugin.refusal = Conflict("pod", found="none assigned here", expected="an assignment")
    server = await connect(plugin, node.device_plugins)
    await asyncio.to_thread(until_allocatable, node_cluster, node.name, [(RESOURCE, 1)])
    await asyncio.to_thread(node_cluster.apply, busybox("refused", limits={RESOURCE: 1}))
    wait = ("wait", "--for=jsonpath={.status.phase}=Failed", "pod/refused", "--timeout=60s")
    await asyncio.to_thread(node_cluster.kubectl, *wait)
    status = (await asyncio.to_thread(node_cluster.get, "pod", "refused"))["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "none assigned here is not an assignment" in status["message"]
    await server.stop()
