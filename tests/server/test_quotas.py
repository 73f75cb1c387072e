"""The server's metrics of quotas: they follow the cluster, and no server waits for them or ends with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from builders.quotaobjects import GPU_MEMORY, cluster_queue, resource_quota
from harness.servers import settle
from tessera.clients.kube import CLUSTER_QUEUES, RESOURCE_QUOTAS, MemoryKube
from tessera.server.run import Server
from tessera.server.settings import ServerSettings

pytestmark = pytest.mark.anyio

USED = f'tessera_quota_used{{kind="ResourceQuota",quota="team-a/gpus",cohort="",flavor="",resource="{GPU_MEMORY}"}}'


@asynccontextmanager
async def running(kube: MemoryKube) -> AsyncIterator[Server]:
    server = Server(ServerSettings(port=0), kube)
    task = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(20):
            await server.synced()
            yield server
    finally:
        server.stop()
        await task


async def lines(server: Server) -> list[str]:
    """Return the metrics when watches have arrived."""
    await settle()
    return server.metrics().decode().splitlines()


async def test_they_follow_the_cluster() -> None:
    kube = MemoryKube()
    await kube.create(RESOURCE_QUOTAS, resource_quota("12"))
    await kube.create(CLUSTER_QUEUES, cluster_queue())
    await kube.patch(CLUSTER_QUEUES, "a", {"status": cluster_queue()["status"]}, subresource="status")
    async with running(kube) as server:
        found = await lines(server)
        assert f"{USED} 12" in found
        of_queue = f'kind="ClusterQueue",quota="a",cohort="all",flavor="a100",resource="{GPU_MEMORY}"'
        assert f"tessera_quota_borrowed{{{of_queue}}} 10" in found
        assert "tessera_quota_left_out 0" in found
        await kube.patch(RESOURCE_QUOTAS, "gpus", resource_quota("20"), namespace="team-a", subresource="status")
        assert f"{USED} 20" in await lines(server)
        await kube.delete(RESOURCE_QUOTAS, "gpus", namespace="team-a")
        await kube.delete(CLUSTER_QUEUES, "a")
        assert not any(each.startswith("tessera_quota_used{") for each in await lines(server))


async def test_one_that_cannot_be_read_is_left_out_and_said_once() -> None:
    kube = MemoryKube()
    await kube.create(RESOURCE_QUOTAS, resource_quota("many"))
    with capture_logs() as logs:
        async with running(kube) as server:
            for used in ("many", "3", "many"):
                await kube.patch(
                    RESOURCE_QUOTAS, "gpus", resource_quota(used), namespace="team-a", subresource="status"
                )
                await settle()
            await kube.create(RESOURCE_QUOTAS, resource_quota("7", "other"))
            found = [each for each in await lines(server) if each.startswith("tessera_quota_used{")]
    assert found == [f"{USED.replace('/gpus', '/other')} 7"]
    (said,) = (each for each in logs if each["event"] == "quotas_not_read")
    assert "ResourceQuota team-a/gpus: status.used: 'many'" in said["reason"]


async def test_without_the_right_or_without_kueue_a_server_is_ready_and_says_what_it_lacks() -> None:
    kube = MemoryKube()
    kube.uninstall(CLUSTER_QUEUES)
    kube.withhold("", RESOURCE_QUOTAS)
    with capture_logs() as logs:
        async with running(kube) as server:
            assert not server.waiting_for()
            assert "tessera_quota_left_out 0" in await lines(server)
    (said,) = (each for each in logs if each["event"] == "quotas_not_read")
    assert "no right" in said["reason"]
