"""Nodes that are objects alone: what the scheduler and the readers see of them."""

import pytest

from kube.fakenodes import FakeNode, connected, delete_nodes, make_nodes
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.clients.kube import GPU_NODES, NODES
from testbed.cluster import Cluster


@pytest.mark.anyio
async def test_hundreds_are_made_and_read_back_as_their_agents_report_them(control_plane: Cluster) -> None:
    nodes = [FakeNode(name=f"fake-{number}", more={"nvidia.com/gpu": 8}) for number in range(200)]
    async with connected(control_plane) as kube:
        try:
            await make_nodes(kube, nodes)
            read = {each.name: each for each in map(read_gpu_node, (await kube.list(GPU_NODES)).objects)}
            assert [read[each.state().name].gpus for each in nodes] == [each.state().gpus for each in nodes]
            found = await kube.get(NODES, "fake-7")
            assert found is not None
            assert "taints" not in found["spec"]
            assert found["status"]["allocatable"]["tessera.dev/gpu-memory"] == str(8 * 40)
        finally:
            await delete_nodes(kube)
        assert (await kube.list(GPU_NODES)).objects == ()
