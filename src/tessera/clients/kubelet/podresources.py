"""The devices of containers, by the kubelet's own record."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc

from tessera.clients.kubelet import sockets
from tessera.clients.kubelet.wire import podresources_v1_pb2 as wire
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.errors import Unavailable, Unsupported

__all__ = ["POD_RESOURCES", "PodResources"]

_Answer = TypeVar("_Answer")

POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""The kubelet's socket, unless it was started with another root folder."""
_SERVICE = "/v1.PodResourcesLister"
_UNKNOWN = "not found"
_DISABLED = "disabled"
"""Texts in the kubelet's errors, whose code is unspecific.

Source: kubernetes `pkg/kubelet/apis/podresources/server_v1.go`.
"""
_RETRY_S = 0.05
"""The kubelet answers 100 calls a second. Source: kubernetes `pkg/kubelet/apis/grpc/ratelimit.go`."""


class PodResources:
    """The kubelet's record, read through its PodResources socket.

    Each call connects; as an async context manager one connection serves all calls, and is renewed when it breaks.
    """

    def __init__(self, socket: Path = POD_RESOURCES, *, deadline_s: float = 5.0) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._keep = False
        self._channel: grpc.aio.Channel | None = None
        self._turn = asyncio.Lock()
        """Closing a connection cancels other callers on it."""

    async def __aenter__(self) -> Self:
        """Keep the connection of the first call."""
        self._keep = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        self._keep = False
        await self._disconnect()

    async def list(self) -> tuple[KubeletAllocation, ...]:
        """Return all devices of device plugins allocated to running and starting pods, sorted.

        Listing makes the kubelet forget an allocation in progress if a pod has just ended, so that it
        may allocate a device twice (docs/kubelet-races.md): use `get` for known pods.

        Rate-limited calls are retried until the deadline. A restarted kubelet shows none of the
        pods until it has read them: a missing running pod means that, not that its devices are free.

        Raises:
            Unavailable: no answer within the deadline.

        """
        answer = await self._ask("List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
        return _allocations(answer.pod_resources)

    async def get(self, namespace: str, pod: str) -> tuple[KubeletAllocation, ...]:
        """Return the devices of one pod, sorted; none for a pod that the kubelet does not know, or not yet.

        Raises:
            Unsupported: a kubelet older than 1.34, without the required feature gate.
            Unavailable: no answer within the deadline.

        """
        request = wire.GetPodResourcesRequest(pod_name=pod, pod_namespace=namespace)
        try:
            answer = await self._ask("Get", request, wire.GetPodResourcesResponse)
        except Unavailable as error:
            if _UNKNOWN in error.found:
                return ()
            if _DISABLED in error.found:
                raise Unsupported(
                    "the kubelet's PodResources",
                    found=error.found,
                    hint="use a kubelet from 1.34, or the feature gate KubeletPodResourcesGet",
                ) from error
            raise
        return _allocations((answer.pod_resources,))

    async def allocatable(self) -> dict[str, frozenset[str]]:
        """Return the ids of all healthy devices that the kubelet knows, allocated or not, by resource.

        A withdrawn device that is missing will not be chosen any more.

        Raises:
            Unavailable: no answer within the deadline.

        """
        answer = await self._ask(
            "GetAllocatableResources", wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
        )
        found: dict[str, frozenset[str]] = {}
        for each in answer.devices:
            found[each.resource_name] = found.get(each.resource_name, frozenset()).union(each.device_ids)
        return found

    async def _ask(self, method: str, request: Any, kind: type[_Answer]) -> _Answer:
        desired = f"the kubelet's PodResources within {self._deadline_s:g} s"
        try:
            async with asyncio.timeout(self._deadline_s), self._turn:
                return await self._answer(method, request, kind)
        except grpc.aio.AioRpcError as error:
            raise sockets.in_our_terms(error, self._socket, desired) from error
        except TimeoutError as error:
            raise Unavailable(
                f"socket {self._socket}", found="no answer", hint=f"try again, or see `tessera doctor`: {desired}"
            ) from error

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _answer(self, method: str, request: Any, kind: type[_Answer]) -> _Answer:
        """Return the kubelet's answer, on a new connection if the kept one has broken."""
        kept = False
        try:
            answer = await self._again(method, request, kind)
            kept = self._keep
        finally:
            if not kept:
                await self._disconnect()
        return answer

    async def _again(self, method: str, request: Any, kind: type[_Answer]) -> _Answer:
        if self._channel is not None:
            try:
                return await _call(self._channel, method, request, kind)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await self._disconnect()
        self._channel = sockets.channel(self._socket)
        return await _call(self._channel, method, request, kind)


async def _call(channel: grpc.aio.Channel, method: str, request: Any, kind: type[_Answer]) -> _Answer:
    call = channel.unary_unary(
        f"{_SERVICE}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=kind.FromString,  # type: ignore[attr-defined]  # generated messages have it
    )
    while True:
        try:
            answer: _Answer = await call(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        else:
            return answer
        await asyncio.sleep(_RETRY_S)


def _allocations(pods: Iterable[wire.PodResources]) -> tuple[KubeletAllocation, ...]:
    """Return the record with one entry for each container and resource; the kubelet's has one for each NUMA node."""
    ids: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
    for pod in pods:
        for container in pod.containers:
            for devices in container.devices:
                key = (pod.namespace, pod.name, container.name, devices.resource_name)
                ids[key] = (*ids.get(key, ()), *devices.device_ids)
    return tuple(
        KubeletAllocation(
            namespace=key[0], pod=key[1], container=key[2], resource=key[3], device_ids=tuple(sorted(set(each)))
        )
        for key, each in sorted(ids.items())
    )
