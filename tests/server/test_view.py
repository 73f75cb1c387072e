"""The cluster as one server sees it: objects that come, change, go, are broken, or are overtaken."""

import pytest

from builders.kubeobjects import gpu, gpunode, node, pod
from harness.servers import (
    NEED,
    Asked,
    make_node,
    make_pod,
    settle,
)
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube
from tessera.core.gpu.sharing import Mode, Sharing

pytestmark = pytest.mark.anyio

ALL = ("a", "b", "plain")


async def test_broken_objects_are_left_out_and_the_server_goes_on(kube: MemoryKube, server: Asked) -> None:
    await kube.create(NODES, node("odd", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesseract-9000"}))
    await kube.create(GPU_NODES, gpunode("odd") | {"spec": {"claims": 3}})
    await kube.create(PODS, pod("odd", {"tessera.dev/gpu-memory": "x"}, node="a"))
    await kube.create(PODS, pod("worse", NEED, node="a", annotations={"tessera.dev/assignment": "[{]"}))
    await settle()
    waiting = await make_pod(kube, "p", NEED)
    assert await server.fitting(waiting, "a", "odd") == ["a"]


async def test_nodes_come_change_and_go(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 20})
    await make_node(kube, "late", gpu(0, "T4"))
    await settle()
    assert await server.fitting(waiting, "late") == []
    bigger = gpunode("late", gpu(0, "A100-80GB", Sharing(modes=(Mode.MPS,))))
    await kube.patch(GPU_NODES, "late", {"status": bigger["status"]}, subresource="status")
    await settle()
    assert await server.fitting(waiting, "late") == ["late"]
    await kube.delete(GPU_NODES, "late")
    await settle()
    assert await server.fitting(waiting, "late") == []
    await kube.delete(NODES, "late")
    await settle()
    assert await server.fitting(waiting, "late", "a") == ["a"]


@pytest.mark.parametrize("unit_mib", [2048, 1 << 24])
async def test_one_node_s_unit_that_there_is_not_keeps_no_pod_from_other_nodes(
    kube: MemoryKube, server: Asked, unit_mib: int
) -> None:
    """As an agent whose identity was stolen may report it: requests are read in the largest unit of all nodes."""
    sharing = Sharing(modes=(Mode.MEMORY_SHARE, Mode.MPS))
    for name in ("honest", "stolen"):
        await make_node(kube, name, gpu(0, "T4", sharing))
    status = gpunode("stolen", gpu(0, "T4", sharing), unit_mib=unit_mib)["status"]
    await kube.patch(GPU_NODES, "stolen", {"status": status}, subresource="status")
    await settle()
    waiting = await make_pod(kube, "p", {"aliyun.com/gpu-mem": 9})
    assert await server.fitting(waiting, "honest") == ["honest"]
