"""The Kubernetes client against the real API server: the conformance suite, and a server that restarts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from conformance.kubesuite import HERE, NAMESPACE, KubeSuite, config_map, until
from tessera.clients.kube import CONFIG_MAPS, LEASES, NODES, PODS, Kube, LightkubeKube, Store
from tessera.errors import InvalidInput, Unavailable
from testbed.cluster import Cluster


async def emptied(kube: Kube) -> None:
    for kind in (CONFIG_MAPS, PODS, NODES, LEASES):
        for each in (await kube.list(kind)).objects:
            name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
            if "suite" in (each["metadata"].get("labels") or {}):
                await kube.delete(kind, name, namespace=namespace, grace_s=0)


@pytest.fixture
async def kube(control_plane: Cluster) -> AsyncIterator[LightkubeKube]:
    async with LightkubeKube.connect(control_plane.kubeconfig) as client:
        await emptied(client)
        yield client
        await emptied(client)


class TestLightkubeKube(KubeSuite):
    pass


@pytest.mark.anyio
async def test_a_store_outlives_a_restart_of_the_api_server(control_plane: Cluster, kube: LightkubeKube) -> None:
    troubles: list[Exception] = []
    await kube.create(CONFIG_MAPS, config_map("before"))
    store = Store(kube, CONFIG_MAPS, HERE, on_trouble=troubles.append)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(store.run())
        await asyncio.wait_for(store.synced(), 30)
        killed = control_plane.processes.get("apiserver")
        assert killed is not None
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(Unavailable):
            await kube.create(CONFIG_MAPS, config_map("too-early"))
        await asyncio.to_thread(control_plane.up, control_plane.wanted)
        async with LightkubeKube.connect(control_plane.kubeconfig) as other:
            await other.delete(CONFIG_MAPS, "before", namespace=NAMESPACE)
            await other.create(CONFIG_MAPS, config_map("after"))
        await until(store, {"after"}, 60)
        following.cancel()
    assert troubles


@pytest.mark.anyio
async def test_a_kubeconfig_that_is_none_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "broken").write_text("clusters: 3")
    for name in ("absent", "broken"):
        with pytest.raises(InvalidInput, match=name):
            LightkubeKube.connect(folder / name)
