"""The container runtime's client and the real containerd of a node, which pulls from the reference registry."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from conformance.registrysuite import filled
from conformance.runtimesuite import USER, RuntimeSuite
from kube.registry import HASHED, RealRegistry, serve_on
from tessera.api.oci.references import read_reference
from tessera.clients.runtime import CriRuntime, LocalImage, Runtime
from tessera.core.storage.images.layers import Reference
from testbed.cluster import Cluster
from testbed.node import Node

pytestmark = pytest.mark.anyio

USERS = f"{USER}:{HASHED}\n"
_SEEN_S = 10.0


@pytest.fixture(scope="module")
def served(node_cluster: Cluster, real_registry: RealRegistry) -> Iterator[tuple[str, str]]:
    """Give two registries on the node, the second for those who know the password."""
    (node,) = node_cluster.nodes
    real_registry.push(*filled(), "suite/one")
    with serve_on(node, real_registry, 5000) as one, serve_on(node, real_registry, 5001, users=USERS) as locked:
        yield one, locked


class TestContainerd(RuntimeSuite):
    @pytest.fixture
    def host(self, served: tuple[str, str]) -> str:
        return served[0]

    @pytest.fixture
    def locked(self, served: tuple[str, str]) -> str:
        return served[1]

    @pytest.fixture
    def digests(self) -> dict[str, str]:
        memory, _ = filled()
        return {tag: memory.contents["suite/one", tag].digest for tag in ("1", "several")}

    @pytest.fixture
    async def runtime(self, node: Node) -> AsyncIterator[Runtime]:
        one = CriRuntime(node.path("/run/containerd/containerd.sock"), root=node.path("/"))
        yield one
        # Without the names CRI knows the images no more, a moment later.
        names = [each for each in node.run(*node._ctr(), "images", "list", "-q").split() if "/suite/one" in each]
        if names:
            node.run(*node._ctr(), "images", "rm", "--sync", *names)
        for each in map(read_reference, names):
            await self.observed(one, each, lambda found: found is None)
        await one.close()

    async def is_pinned(self, runtime: Runtime, image: Reference, *, want: bool) -> bool:
        """Return whether an image is pinned; CRI hears of it from containerd's events, a moment later."""
        found = await self.observed(runtime, image, lambda found: found is not None and found.pinned == want)
        assert found is not None
        return found.pinned

    async def observed(
        self, runtime: Runtime, image: Reference, ready: Callable[[LocalImage | None], bool]
    ) -> LocalImage | None:
        """Return an image as CRI has it when it is as desired, or at the latest after a while."""
        deadline = time.monotonic() + _SEEN_S
        while True:
            found = await runtime.image(image)
            if ready(found) or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.1)
