"""Transport of a device plugin: its server on a unix socket, and its registration with the kubelet."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import msgspec

from tessera.clients.kubelet import sockets
from tessera.clients.kubelet.responses import to_wire
from tessera.clients.kubelet.wire import deviceplugin_v1beta1_pb2 as wire
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import ListedDevice
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.errors import TesseraError, Unavailable

__all__ = ["DevicePlugin", "OptionalCalls", "PluginServer", "register", "serve"]

VERSION = "v1beta1"
SERVICE = "v1beta1.DevicePlugin"
REGISTER = "/v1beta1.Registration/Register"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""Source: k8s.io/kubelet `pkg/apis/deviceplugin/v1beta1/constants.go`."""

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Answer = TypeVar("_Answer")


class OptionalCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The optional calls that a plugin uses besides `Allocate`."""

    pre_start: bool = False
    preferred: bool = True


class DevicePlugin(Protocol):
    """The decisions of a device plugin. Errors of Tessera end the call with their text, which the kubelet shows."""

    @property
    def options(self) -> OptionalCalls:
        """The optional calls in use."""

    def watch(self) -> AsyncIterator[tuple[ListedDevice, ...]]:
        """Yield all devices, and all again after each change; the end withdraws the resource from the kubelet."""

    async def prefer(self, request: PreferenceRequest) -> tuple[str, ...]:
        """Return the preferred device ids of one container."""

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Return the response for one container with these devices."""

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Prepare the devices of a container before it is created."""


class PluginServer:
    """A listening device plugin; created by `serve`."""

    def __init__(self, server: grpc.aio.Server, socket: Path) -> None:
        self._server = server
        self._identity = sockets.identity(socket)
        self.socket = socket

    @property
    def reachable(self) -> bool:
        """Whether the socket is still the created one; a kubelet removes it when it starts."""
        found = sockets.identity(self.socket)
        return found is not None and found == self._identity

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop listening and remove the socket; running calls may take this long.

        gRPC removes whatever is at the path then; a socket created there by another process is restored.
        """
        with sockets.preserved(self.socket, foreign=not self.reachable):
            await self._server.stop(grace_s)


async def serve(plugin: DevicePlugin, socket: Path) -> PluginServer:
    """Return the running server of a plugin; the caller stops it.

    Raises:
        InvalidInput: the path is too long for a socket.
        Unavailable: the socket cannot be made, as in a folder that is read-only.

    """
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(plugin)),))
    sockets.bind(server, socket)
    try:
        await server.start()
    except asyncio.CancelledError:
        await server.stop(None)
        raise
    return PluginServer(server, socket)


async def register(
    kubelet: Path, endpoint: str, resource: str, options: OptionalCalls, *, deadline_s: float = 15.0
) -> None:
    """Register a listening plugin with the kubelet, which connects to it meanwhile.

    Args:
        kubelet: the kubelet's registration socket.
        endpoint: file name of the plugin's socket beside it.
        resource: resource name.
        options: as the plugin gives them.
        deadline_s: the kubelet takes up to 10 s to connect.

    Raises:
        Unavailable: the kubelet does not listen, does not answer, or rejects it.

    """
    request = wire.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=options_message(options)
    )
    purpose = f"registration of {resource} by the kubelet"
    try:
        async with asyncio.timeout(deadline_s), sockets.channel(kubelet) as channel:
            call = channel.unary_unary(
                REGISTER,
                request_serializer=wire.RegisterRequest.SerializeToString,
                response_deserializer=wire.Empty.FromString,
            )
            await call(request)
    except grpc.aio.AioRpcError as error:
        raise sockets.in_our_terms(error, kubelet, purpose) from error
    except TimeoutError as error:
        raise Unavailable(
            f"socket {kubelet}",
            found=f"no answer in {deadline_s:g} s",
            hint=f"the agent tries again: {purpose}",
        ) from error


def options_message(options: OptionalCalls) -> wire.DevicePluginOptions:
    """Return options as a protobuf message."""
    return wire.DevicePluginOptions(
        pre_start_required=options.pre_start, get_preferred_allocation_available=options.preferred
    )


def _handlers(plugin: DevicePlugin) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
    async def options(_: wire.Empty, __: _Context) -> wire.DevicePluginOptions:
        return options_message(plugin.options)

    async def watch(_: wire.Empty, __: _Context) -> AsyncIterator[wire.ListAndWatchResponse]:
        async for devices in plugin.watch():
            yield wire.ListAndWatchResponse(devices=[_device(device) for device in devices])

    async def prefer(request: wire.PreferredAllocationRequest, context: _Context) -> wire.PreferredAllocationResponse:
        async def one(container: wire.ContainerPreferredAllocationRequest) -> wire.ContainerPreferredAllocationResponse:
            preference = PreferenceRequest(
                available=tuple(container.available_deviceIDs),
                must_include=tuple(container.must_include_deviceIDs),
                size=container.allocation_size,
            )
            ids = await _answer(context, plugin.prefer, preference)
            return wire.ContainerPreferredAllocationResponse(deviceIDs=ids)

        answers = [await one(each) for each in request.container_requests]
        return wire.PreferredAllocationResponse(container_responses=answers)

    async def allocate(request: wire.AllocateRequest, context: _Context) -> wire.AllocateResponse:
        requested = [tuple(each.devices_ids) for each in request.container_requests]
        answers = [to_wire(await _answer(context, plugin.allocate, ids)) for ids in requested]
        return wire.AllocateResponse(container_responses=answers)

    async def pre_start(request: wire.PreStartContainerRequest, context: _Context) -> wire.PreStartContainerResponse:
        await _answer(context, plugin.pre_start, tuple(request.devices_ids))
        return wire.PreStartContainerResponse()

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    return {
        "GetDevicePluginOptions": unary(options, wire.Empty.FromString, _bytes),
        "ListAndWatch": stream(watch, wire.Empty.FromString, _bytes),
        "GetPreferredAllocation": unary(prefer, wire.PreferredAllocationRequest.FromString, _bytes),
        "Allocate": unary(allocate, wire.AllocateRequest.FromString, _bytes),
        "PreStartContainer": unary(pre_start, wire.PreStartContainerRequest.FromString, _bytes),
    }


def _bytes(message: Any) -> bytes:
    """Return any message as a protobuf message."""
    written: bytes = message.SerializeToString()
    return written


async def _answer(context: _Context, decide: Callable[[Any], Awaitable[_Answer]], requested: object) -> _Answer:
    try:
        return await decide(requested)
    except TesseraError as error:
        await sockets.abort(context, error)


def _device(device: ListedDevice) -> wire.Device:
    topology = None if device.numa is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa)])
    return wire.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY, topology=topology)
