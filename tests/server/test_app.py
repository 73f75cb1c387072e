"""The server over an API in memory, asked as kube-scheduler asks."""

import msgspec
import pytest

from kubeobjects import gpu, node
from servers import NEED, make_node, make_pod, servers, settle
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, annotations_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with two nodes of two A100 each, one node without GPUs."""
    made = MemoryKube()
    for name in ("a", "b"):
        await make_node(made, name, gpu(0), gpu(1))
    await made.create(NODES, node("plain"))
    return made


ALL = ("a", "b", "plain")


async def test_a_need_is_bound_with_its_assignment_and_its_claim_goes(kube: MemoryKube) -> None:
    async with servers(kube) as (server,):
        pod = await make_pod(kube, "p", NEED)
        await settle()
        assert await server.fitting(pod, *ALL) == ["a", "b"]
        assert await server.schedule(pod, *ALL) == ""
        bound = await kube.get(PODS, "p", "ns")
        assert bound is not None
        assert bound["spec"]["nodeName"] == "a"
        shares = msgspec.json.decode(annotations_of(bound)["tessera.dev/assignment"])
        assert [share["memory_mib"] for share in shares] == [10240]
        await settle()
        await server.server.binder.sweep()
        found = await kube.get(GPU_NODES, "a")
        assert found is not None
        assert found["spec"]["claims"] == []
