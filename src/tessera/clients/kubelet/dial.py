"""The kubelet's side of a device plugin: it connects, watches the list of devices and calls."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import grpc

from tessera.clients.kubelet import sockets
from tessera.clients.kubelet.plugin import HEALTHY, SERVICE, OptionalCalls
from tessera.clients.kubelet.responses import from_wire
from tessera.clients.kubelet.wire import deviceplugin_v1beta1_pb2 as wire
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.errors import Conflict

__all__ = ["Listed", "PluginConnection"]

_DIAL_S = 10.0
"""Source: kubernetes `pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`."""
_ASK_S = 60.0
"""The kubelet waits for ever; tests should not."""


class Listed:
    """A device in the plugin's list."""

    def __init__(self, device: wire.Device) -> None:
        self.id = device.ID
        self.healthy = device.health == HEALTHY
        self.numa = tuple(node.ID for node in device.topology.nodes)


class PluginConnection:
    """A connection to one device plugin."""

    def __init__(self, socket: Path, notify: Callable[[], Awaitable[None]]) -> None:
        self.devices: tuple[Listed, ...] = ()
        self.known: frozenset[str] = frozenset()
        """Ids in the last list of the resource, from any plugin."""
        self.options = OptionalCalls(preferred=False)
        self.connected = False
        self.successor: Self | None = None
        self._socket = socket
        self._notify = notify
        self._channel: grpc.aio.Channel | None = None
        self._following: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect and get the options.

        Raises:
            Conflict: the plugin does not listen or does not answer.

        """
        self._channel = sockets.channel(self._socket)
        try:
            async with asyncio.timeout(_DIAL_S):
                answer = await self._ask("GetDevicePluginOptions", wire.Empty(), wire.DevicePluginOptions)
        except (TimeoutError, Conflict) as error:
            await self._channel.close()
            raise Conflict(f"socket {self._socket}", found=str(error), hint="see the device plugin's log") from error
        self.options = OptionalCalls(
            pre_start=answer.pre_start_required, preferred=answer.get_preferred_allocation_available
        )
        self.connected = True

    def follow(self) -> None:
        """Start watching the plugin's list."""
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Disconnect."""
        self.connected = False
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        await self._notify()

    async def ping(self) -> None:
        """Get the options again, which shows that the plugin answers."""
        await self._ask("GetDevicePluginOptions", wire.Empty(), wire.DevicePluginOptions)

    async def prefer(self, desired: PreferenceRequest) -> tuple[str, ...]:
        """Return the plugin's preferred ids."""
        request = wire.PreferredAllocationRequest(
            container_requests=[
                wire.ContainerPreferredAllocationRequest(
                    available_deviceIDs=desired.available,
                    must_include_deviceIDs=desired.must_include,
                    allocation_size=desired.size,
                )
            ]
        )
        answer = await self._ask("GetPreferredAllocation", request, wire.PreferredAllocationResponse)
        return tuple(answer.container_responses[0].deviceIDs)

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Return the plugin's answer for a container with these devices."""
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
        answer = await self._ask("Allocate", request, wire.AllocateResponse)
        return from_wire(answer.container_responses[0])

    async def pre_start(self, ids: tuple[str, ...], *, deadline_s: float) -> None:
        """Call `PreStartContainer` for a container with these devices."""
        request = wire.PreStartContainerRequest(devices_ids=ids)
        await self._ask("PreStartContainer", request, wire.PreStartContainerResponse, deadline_s)

    async def _ask(self, method: str, request: Any, answer: Any, deadline_s: float = _ASK_S) -> Any:
        if self._channel is None:
            raise Conflict(
                f"socket {self._socket}", found=f"no connection for {method}", hint="the kubelet connects again"
            )
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return await call(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            raise Conflict(f"socket {self._socket}", found=f"{method} cannot be answered: {error.details()}") from error
        except grpc.aio.UsageError as error:
            raise Conflict(f"socket {self._socket}", found=f"{method} cannot be answered: {error}") from error

    async def _follow(self) -> None:
        assert self._channel is not None, "connect comes first"
        call = self._channel.unary_stream(
            f"/{SERVICE}/ListAndWatch",
            request_serializer=wire.Empty.SerializeToString,
            response_deserializer=wire.ListAndWatchResponse.FromString,
        )
        try:
            async for answer in call(wire.Empty()):
                self.devices = tuple(Listed(device) for device in answer.devices)
                self.known = frozenset(each.id for each in self.devices)
                await self._notify()
        except grpc.aio.AioRpcError:
            pass  # the plugin is gone, which the end of the stream shows as well
        last = self
        while last.successor is not None:
            last = last.successor
        last.connected = False
        await self._notify()
