"""A cluster with a server that tests of the server share."""

from collections.abc import AsyncIterator

import pytest

from builders.kubeobjects import gpu, node
from harness.servers import Asked, make_node, servers
from tessera.clients.kube import NODES, MemoryKube


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with two nodes of two A100 each and one node without GPUs."""
    made = MemoryKube()
    for name in ("a", "b"):
        await make_node(made, name, gpu(0), gpu(1))
    await made.create(NODES, node("plain"))
    return made


@pytest.fixture
async def server(kube: MemoryKube) -> AsyncIterator[Asked]:
    async with servers(kube) as (one,):
        yield one
