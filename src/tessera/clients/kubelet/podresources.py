"""Which containers hold which devices, by the kubelet's own record."""

import asyncio
from pathlib import Path
from typing import Self

import grpc

from tessera.clients.kubelet import sockets
from tessera.clients.kubelet.wire import podresources_v1_pb2 as wire
from tessera.core.matching import Held
from tessera.errors import Unavailable

__all__ = ["POD_RESOURCES", "Held", "PodResources"]

POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""Where the kubelet answers, unless it was started with another root folder."""
_LIST = "/v1.PodResourcesLister/List"
_AGAIN_S = 0.05
"""The kubelet answers 100 calls a second. Source: kubernetes `pkg/kubelet/apis/grpc/ratelimit.go`."""


class PodResources:
    """The kubelet's record, read through its PodResources socket.

    Each call connects; as an asynchronous context one connection serves all calls, and is renewed when it breaks.
    """

    def __init__(self, socket: Path = POD_RESOURCES, *, deadline_s: float = 5.0) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._keep = False
        self._channel: grpc.aio.Channel | None = None
        self._turn = asyncio.Lock()
        """Closing a connection cancels whoever else waits for an answer on it."""

    async def __aenter__(self) -> Self:
        """Keep the connection of the first call."""
        self._keep = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        self._keep = False
        await self._disconnect()

    async def list(self) -> tuple[Held, ...]:
        """Return all devices of device plugins that running and starting pods hold, sorted.

        A kubelet that is asked too often is asked again until the deadline. One that has just started shows none of the
        pods until it has read them: that a running pod is missing means that, not that its devices are free.

        Raises:
            Unavailable: no answer within the deadline.

        """
        wanted = f"the kubelet's PodResources within {self._deadline_s:g} s"
        try:
            async with asyncio.timeout(self._deadline_s), self._turn:
                return _held(await self._answer())
        except grpc.aio.AioRpcError as error:
            raise sockets.in_our_terms(error, self._socket, wanted) from error
        except TimeoutError as error:
            raise Unavailable(f"socket {self._socket}", found="no answer", wanted=wanted) from error

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _answer(self) -> wire.ListPodResourcesResponse:
        """Return the kubelet's answer, on a new connection when the one that was kept has broken since."""
        kept = False
        try:
            answer = await self._ask_again()
            kept = self._keep
        finally:
            if not kept:
                await self._disconnect()
        return answer

    async def _ask_again(self) -> wire.ListPodResourcesResponse:
        if self._channel is not None:
            try:
                return await self._ask(self._channel)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await self._disconnect()
        self._channel = sockets.channel(self._socket)
        return await self._ask(self._channel)

    async def _ask(self, channel: grpc.aio.Channel) -> wire.ListPodResourcesResponse:
        call = channel.unary_unary(
            _LIST,
            request_serializer=wire.ListPodResourcesRequest.SerializeToString,
            response_deserializer=wire.ListPodResourcesResponse.FromString,
        )
        while True:
            try:
                return await call(wire.ListPodResourcesRequest())
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            await asyncio.sleep(_AGAIN_S)


def _held(answer: wire.ListPodResourcesResponse) -> tuple[Held, ...]:
    """Return the record with one entry for each container and resource; the kubelet writes one for each NUMA node."""
    ids: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                key = (pod.namespace, pod.name, container.name, devices.resource_name)
                ids[key] = (*ids.get(key, ()), *devices.device_ids)
    return tuple(
        Held(namespace=key[0], pod=key[1], container=key[2], resource=key[3], device_ids=tuple(sorted(set(each))))
        for key, each in sorted(ids.items())
    )
