"""A device plugin that answers as configured, and folders short enough for sockets."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from tessera.clients.kubelet import OptionalCalls, PluginServer, register, serve
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.core.gpu.sharing import Mode
from tessera.errors import Conflict

RESOURCE = "nvidia.com/gpu"


def devices(*ids: str, unhealthy: tuple[str, ...] = (), numa: int | None = None) -> tuple[PluginDevice, ...]:
    return tuple(
        PluginDevice(id=each, healthy=each not in unhealthy, numa=numa, gpu_uuid=each, uuid=each, mode=Mode.WHOLE)
        for each in ids
    )


class ScriptedPlugin:
    """A device plugin; what it was asked is in `asked`."""

    def __init__(self, *ids: str, options: OptionalCalls | None = None) -> None:
        self.options = options or OptionalCalls(pre_start=True)
        self.requested: list[tuple[str, object]] = []
        self.refusal: Conflict | None = None
        self._lists: list[asyncio.Queue[tuple[PluginDevice, ...] | None]] = []
        self._devices = devices(*ids)

    def push(self, *listed: PluginDevice) -> None:
        """Send another list to whoever watches."""
        self._devices = listed
        for each in self._lists:
            each.put_nowait(listed)

    def end(self) -> None:
        """End the stream of whoever watches."""
        for each in self._lists:
            each.put_nowait(None)

    async def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        queue: asyncio.Queue[tuple[PluginDevice, ...] | None] = asyncio.Queue()
        self._lists.append(queue)
        yield self._devices
        while (listed := await queue.get()) is not None:
            yield listed

    async def prefer(self, desired: PreferenceRequest) -> tuple[str, ...]:
        self.requested.append(("prefer", desired.size))
        return tuple(sorted(desired.available))[: desired.size]

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        self.requested.append(("allocate", ids))
        if self.refusal is not None:
            raise self.refusal
        return ContainerResponse(
            env=(("IDS", ",".join(ids)),), annotations=(("a", "b"),), cdi_devices=("tessera.dev/gpu=0",)
        )

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        self.requested.append(("pre_start", ids))
        if self.refusal is not None:
            raise self.refusal


async def connect(plugin: ScriptedPlugin, folder: Path, resource: str = RESOURCE) -> PluginServer:
    """Serve and register a plugin as an agent does."""
    name = f"{resource.replace('/', '_')}.sock"
    server = await serve(plugin, folder / name)
    await register(folder / "kubelet.sock", name, resource, plugin.options)
    return server
