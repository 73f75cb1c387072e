"""Device plugins of another system on a testbed, as that system's pages of docs/migrate find them."""

import asyncio
import threading
from typing import Self

from harness.plugins import ScriptedPlugin, connect
from tessera.clients.kubelet import OptionalCalls, PluginServer
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from testbed.cluster import Cluster
from testbed.node import Node

__all__ = ["OtherPlugins"]

_LOOK_S = 0.5


class _Another(ScriptedPlugin):
    """Answers as other systems' device plugins do: by the environment."""

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        return ContainerResponse(env=(("NVIDIA_VISIBLE_DEVICES", ",".join(ids)),))


class OtherPlugins:
    """Device plugins of another system, which run on a node as long as it has a label, as pods of a DaemonSet do.

    Args:
        cluster: it is in.
        node: they serve.
        label: of the nodes on which they run, `gpushare=true`.
        devices: ids by resource name.

    """

    def __init__(self, cluster: Cluster, node: Node, label: str, devices: dict[str, tuple[str, ...]]) -> None:
        self._selected = ("node", "--selector", f"kubernetes.io/hostname={node.name},{label}")
        self._cluster = cluster
        self._node = node
        self._devices = devices
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _follow(self) -> None:
        servers: list[PluginServer] = []
        while not self._ended.is_set():
            desired = bool((await asyncio.to_thread(self._cluster.get, *self._selected))["items"])
            if desired and not servers:
                servers = [await self._serve(name, ids) for name, ids in self._devices.items()]
            if servers and not desired:
                servers = await self._stop(servers)
            await asyncio.to_thread(self._ended.wait, _LOOK_S)
        await self._stop(servers)

    async def _serve(self, resource: str, ids: tuple[str, ...]) -> PluginServer:
        return await connect(_Another(*ids, options=OptionalCalls()), self._node.device_plugins, resource)

    async def _stop(self, servers: list[PluginServer]) -> list[PluginServer]:
        for each in servers:
            await each.stop()
        return []
