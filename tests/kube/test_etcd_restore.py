"""The client against a real etcd that is restored from a backup while a process watches."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.kubesuite import HERE, NAMESPACE, config_map, until
from kube.conftest import brought_up
from tessera.clients.kube import CONFIG_MAPS, HistoryRewound, HttpKube, Store
from testbed.cluster import Cluster, Desired

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(scope="module")
def etcd_plane(program_folder: Path) -> Iterator[Cluster]:
    """Give a control plane of these tests' own, whose etcd they stop."""
    with brought_up("etcd", program_folder, Desired(nodes=0)) as cluster:
        yield cluster


def copied(cluster: Cluster, source: Path, target: Path) -> None:
    """Stop the API server and etcd, copy data of etcd, and start both again."""
    for name in ("apiserver", "etcd"):
        cluster.processes.stop(name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    cluster.up(cluster.desired)


async def test_what_watches_ends_and_what_starts_has_what_was_restored(etcd_plane: Cluster) -> None:
    """A watch alone is silent until the new versions reach the old ones, and then goes on as if nothing was lost."""
    cluster, data, backup = etcd_plane, etcd_plane.folder / "etcd", etcd_plane.folder / "backup"
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        await kube.create(CONFIG_MAPS, config_map("before"))
    await asyncio.to_thread(copied, cluster, data, backup)
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        store = Store(kube, CONFIG_MAPS, HERE)
        watching = asyncio.create_task(store.run())
        await until(store, {"before"}, 60)
        await kube.delete(CONFIG_MAPS, "before", namespace=NAMESPACE)
        await kube.create(CONFIG_MAPS, config_map("after"))
        for number in range(20):
            await kube.patch(CONFIG_MAPS, "after", {"data": {"a": str(number)}}, namespace=NAMESPACE)
        await until(store, {"after"}, 60)
        await asyncio.to_thread(copied, cluster, backup, data)
        with pytest.raises(HistoryRewound, match="as after a restore of etcd from a backup"):
            await asyncio.wait_for(watching, 60)
        again = Store(kube, CONFIG_MAPS, HERE)
        following = asyncio.create_task(again.run())
        await until(again, {"before"}, 60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
