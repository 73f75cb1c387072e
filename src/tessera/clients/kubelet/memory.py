"""An in-memory kubelet for device plugins and readers of PodResources; for tests, demos and benchmarks.

Source of its behavior, order and limits: kubernetes v1.36 `pkg/kubelet/cm/devicemanager`
(`manager.go`, `plugin/v1beta1/{server,handler,client}.go`). It speaks with plugins over real sockets.
"""

import asyncio
import random
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
import msgspec

from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT
from tessera.clients.kubelet import sockets
from tessera.clients.kubelet.dial import PluginConnection
from tessera.clients.kubelet.plugin import VERSION
from tessera.clients.kubelet.responses import to_wire
from tessera.clients.kubelet.wire import deviceplugin_v1beta1_pb2 as plugin_wire
from tessera.clients.kubelet.wire import podresources_v1_pb2 as pods_wire
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.errors import Conflict, Unavailable

__all__ = ["Container", "MemoryKubelet"]

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_RESOURCE_NAME = re.compile(
    r"(?!([^/]*\.)?kubernetes\.io/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
"""Source: kubernetes `pkg/apis/core/v1/helper` `IsExtendedResourceName`."""
_PRE_START_S = 30.0
_EMPTY = ContainerResponse()


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container and its requested devices."""

    name: str
    limits: tuple[tuple[str, int], ...]
    """Resource name and number of devices."""


class _KubeletEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource allocated to a container, and the plugin's answer."""

    uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: ContainerResponse

    def of(self, namespace: str, pod: str, container: str | None = None) -> bool:
        return (self.namespace, self.pod) == (namespace, pod) and container in (None, self.container)


class MemoryKubelet:
    """A kubelet with its root in a folder; an async context manager that serves while it is open.

    Args:
        root: its sockets are in `device-plugins` and `pod-resources`.
        rng: chooses devices if a plugin has no preference, as Go's maps do.

    """

    def __init__(self, root: Path, rng: random.Random | None = None) -> None:
        self.plugins = root / "device-plugins"
        self.socket = self.plugins / "kubelet.sock"
        self.pod_resources = root / "pod-resources" / "kubelet.sock"
        self.refused_lists = 0
        """How many of the next PodResources calls are rejected by the rate limit."""
        self.listed = 0
        """How often all pods were listed, which makes a real kubelet forget an allocation in progress."""
        self.has_get = True
        """Whether it serves the devices of one pod, as kubelets do from 1.34 on."""
        self.registrations: list[str] = []
        """Resource names, in the order of their registrations since the last start."""
        self.forgotten: set[str] = set()
        """Device ids that it considers free although they are allocated, as a kubelet does after a race of its own
        (docs/kubelet-races.md)."""
        self.panics: list[str] = []
        """Why a real kubelet would have crashed: a chosen device was missing from the list when `Allocate` was
        answered (docs/kubelet-races.md). Leaving the context raises it again."""
        self._rng = rng or random.Random(0)  # noqa: S311  # a choice anyone may know
        self._endpoints: dict[str, PluginConnection] = {}
        self._entries: list[_KubeletEntry] = []
        self._servers: list[grpc.aio.Server] = []
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Stop.

        Raises:
            Unavailable: a real kubelet would have died.

        """
        await self.stop()
        if self.panics and kind is None:
            raise _dead(self.panics[0])

    async def start(self) -> None:
        """Remove the sockets of plugins, then listen; allocations are known from before."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            if path.name != DEVICE_CHECKPOINT and stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self.registrations.clear()
        unary = grpc.unary_unary_rpc_method_handler
        register = unary(self._register, plugin_wire.RegisterRequest.FromString, plugin_wire.Empty.SerializeToString)
        list_pods = unary(
            self._list,
            pods_wire.ListPodResourcesRequest.FromString,
            pods_wire.ListPodResourcesResponse.SerializeToString,
        )
        get_pod = unary(
            self._get,
            pods_wire.GetPodResourcesRequest.FromString,
            pods_wire.GetPodResourcesResponse.SerializeToString,
        )
        allocatable = unary(
            self._allocatable,
            pods_wire.AllocatableResourcesRequest.FromString,
            pods_wire.AllocatableResourcesResponse.SerializeToString,
        )
        record: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "List": list_pods,
            "Get": get_pod,
            "GetAllocatableResources": allocatable,
        }
        for path, service, handlers in (
            (self.socket, "v1beta1.Registration", {"Register": register}),
            (self.pod_resources, "v1.PodResourcesLister", record),
        ):
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
            sockets.bind(server, path)
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop listening and disconnect from the plugins; containers keep running."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def restart(self, *, without_record: bool = False) -> None:
        """Stop and start, as an administrator does who changes its configuration, or without its checkpoint."""
        await self.stop()
        if without_record:
            self._entries.clear()
            self._endpoints.clear()
            (self.plugins / DEVICE_CHECKPOINT).unlink(missing_ok=True)
        await self.start()

    def capacity(self, resource: str) -> int:
        """Return the number of devices, healthy or not."""
        endpoint = self._endpoints.get(resource)
        return len(endpoint.devices) if endpoint else 0

    def allocatable(self, resource: str, begin: str = "") -> int:
        """Return the number of healthy devices whose ids begin so, allocated or not."""
        return sum(each.startswith(begin) for each in self._healthy(resource))

    async def until_allocatable(self, resource: str, count: int, *, begin: str = "", deadline_s: float = 30.0) -> None:
        """Return when so many devices of a resource, whose ids begin so, are healthy.

        Raises:
            Unavailable: they are not within the deadline.

        """
        number = partial(self.allocatable, begin=begin)
        await self._until(resource, number, count, "healthy devices", deadline_s)

    async def until_capacity(self, resource: str, count: int, *, deadline_s: float = 30.0) -> None:
        """Return when a resource has so many devices, healthy or not.

        Raises:
            Unavailable: it has not within the deadline.

        """
        await self._until(resource, self.capacity, count, "devices", deadline_s)

    async def _until(
        self, resource: str, number: Callable[[str], int], count: int, what: str, deadline_s: float
    ) -> None:
        try:
            async with asyncio.timeout(deadline_s), self._changed:
                await self._changed.wait_for(lambda: number(resource) == count)
        except TimeoutError as error:
            found = f"{number(resource)} {what} after {deadline_s:g} s"
            raise Unavailable(f"resource {resource}", found=f"{found}, not {count}") from error

    async def admit(self, namespace: str, pod: str, *containers: Container, uid: str = "") -> None:
        """Let the plugins allocate a pod's devices; without a UID it is known by its name.

        A pod is admitted without a resource that no plugin has registered since the kubelet started without its record.

        Raises:
            Conflict: the pod is rejected (`UnexpectedAdmissionError`), with the reason; it has nothing then.
            Unavailable: a real kubelet would have crashed.

        """
        try:
            for container in containers:
                for resource, count in container.limits:
                    if resource not in self._endpoints:
                        continue
                    ids = await self._choose(resource, count)
                    one = Container(name=container.name, limits=((resource, count),))
                    await self.allocate(namespace, pod, one, ids, uid=uid)
        except Conflict:
            self.remove(namespace, pod)
            raise

    async def allocate(
        self, namespace: str, pod: str, container: Container, ids: tuple[str, ...], *, uid: str = ""
    ) -> ContainerResponse:
        """Return the plugin's answer for a container of one resource with exactly these devices, and record it.

        Raises:
            Conflict: the plugin refuses.
            Unavailable: a real kubelet would have crashed.

        """
        (resource, _), *_ = container.limits
        try:
            response = await self._endpoints[resource].allocate(ids)
        except Conflict:
            self.forgotten.clear()  # an error makes it count anew what is held
            raise
        missing = sorted(frozenset(ids) - self._endpoints[resource].known)
        if missing:
            self.panics.append(f"nil pointer dereference: {missing[0]} of {resource} is not listed any more")
            raise _dead(self.panics[-1])
        self.record(namespace, pod, container, ids, response, uid=uid)
        return response

    def record(
        self,
        namespace: str,
        pod: str,
        container: Container,
        ids: tuple[str, ...],
        response: ContainerResponse = _EMPTY,
        *,
        uid: str = "",
    ) -> None:
        """Record the devices of one resource, and write the checkpoint, regardless of the plugin."""
        entry = _KubeletEntry(
            uid=uid or f"uid-{pod}",
            namespace=namespace,
            pod=pod,
            container=container.name,
            resource=container.limits[0][0],
            ids=ids,
            response=response,
        )
        self._entries.append(entry)
        self._write_checkpoint()

    async def ping(self, resource: str) -> None:
        """Get a plugin's options again: a call without effect."""
        await self._endpoints[resource].ping()

    async def create(self, namespace: str, pod: str, container: str) -> ContainerResponse:
        """Return what the runtime gets when a container is created or recreated.

        Raises:
            Conflict: a plugin refused (`CreateContainerConfigError`); the kubelet would retry.

        """
        entries = [each for each in self._entries if each.of(namespace, pod, container)]
        for each in entries:
            endpoint = self._endpoints[each.resource]
            if endpoint.options.pre_start:
                await endpoint.pre_start(each.ids, deadline_s=_PRE_START_S)
        return ContainerResponse(
            env=tuple(dict(pair for each in entries for pair in each.response.env).items()),
            mounts=tuple(dict.fromkeys(mount for each in entries for mount in each.response.mounts)),
            device_nodes=tuple(dict.fromkeys(node for each in entries for node in each.response.device_nodes)),
            annotations=tuple(dict(pair for each in entries for pair in each.response.annotations).items()),
            cdi_devices=tuple(dict.fromkeys(name for each in entries for name in each.response.cdi_devices)),
        )

    def remove(self, namespace: str, pod: str) -> None:
        """Forget a pod that ended."""
        self._entries = [each for each in self._entries if not each.of(namespace, pod)]

    def lose_record(self) -> None:
        """Have no allocation on record any more, as a kubelet that started without its checkpoint."""
        self._entries.clear()
        self._write_checkpoint()

    def _healthy(self, resource: str) -> list[str]:
        endpoint = self._endpoints.get(resource)
        return [each.id for each in endpoint.devices if each.healthy] if endpoint and endpoint.connected else []

    async def _choose(self, resource: str, count: int) -> tuple[str, ...]:
        healthy = self._healthy(resource)
        if not healthy:
            raise Conflict(
                f"resource {resource}",
                found=f"it has no healthy device, and {count} are requested",
                hint="request fewer",
            )
        used = {each for entry in self._entries if entry.resource == resource for each in entry.ids}
        used -= self.forgotten
        available = [each for each in healthy if each not in used]
        if len(available) < count:
            found = f"{len(available)} available devices"
            raise Conflict(
                f"resource {resource}", found=f"{found}, and {count} devices are requested", hint="request fewer"
            )
        self._rng.shuffle(available)
        endpoint = self._endpoints[resource]
        if not endpoint.options.preferred:
            return tuple(available[:count])
        preferred = await endpoint.prefer(PreferenceRequest(available=tuple(available), size=count))
        free = set(available)
        return tuple(dict.fromkeys([*(each for each in preferred if each in free), *available]))[:count]

    async def _register(self, request: plugin_wire.RegisterRequest, context: _Context) -> plugin_wire.Empty:
        resource = request.resource_name
        if request.version != VERSION:
            await context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version!r} is not supported")
        if not _RESOURCE_NAME.fullmatch(resource):
            await context.abort(grpc.StatusCode.UNKNOWN, f"the ResourceName {resource!r} is invalid")
        endpoint = PluginConnection(self.plugins / request.endpoint, self._notify)
        try:
            await endpoint.connect()
        except Conflict as error:
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        before = self._endpoints.get(resource)
        self._endpoints[resource] = endpoint
        if before is not None:
            endpoint.known = before.known
            # When the stream of a plugin ends, the kubelet disconnects whoever is registered for the resource by then.
            before.successor = endpoint
        self.registrations.append(resource)
        endpoint.follow()
        return plugin_wire.Empty()

    async def _notify(self) -> None:
        if self._endpoints and not (self.plugins / DEVICE_CHECKPOINT).exists():
            self._write_checkpoint()
        async with self._changed:
            self._changed.notify_all()

    async def _list(
        self, _: pods_wire.ListPodResourcesRequest, context: _Context
    ) -> pods_wire.ListPodResourcesResponse:
        await self._limit(context)
        self.listed += 1
        answer = pods_wire.ListPodResourcesResponse()
        for (namespace, pod), entries in self._by_pod():
            _fill(answer.pod_resources.add(name=pod, namespace=namespace), entries)
        return answer

    async def _get(
        self, request: pods_wire.GetPodResourcesRequest, context: _Context
    ) -> pods_wire.GetPodResourcesResponse:
        await self._limit(context)
        if not self.has_get:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        namespace, pod = request.pod_namespace, request.pod_name
        entries = dict(self._by_pod()).get((namespace, pod))
        if entries is None:
            await context.abort(grpc.StatusCode.UNKNOWN, f"pod {pod} in namespace {namespace} not found")
        answer = pods_wire.GetPodResourcesResponse()
        answer.pod_resources.name, answer.pod_resources.namespace = pod, namespace
        _fill(answer.pod_resources, entries or ())
        return answer

    async def _allocatable(
        self, _: pods_wire.AllocatableResourcesRequest, context: _Context
    ) -> pods_wire.AllocatableResourcesResponse:
        await self._limit(context)
        answer = pods_wire.AllocatableResourcesResponse()
        for resource in self._endpoints:
            answer.devices.add(resource_name=resource, device_ids=self._healthy(resource))
        return answer

    async def _limit(self, context: _Context) -> None:
        if self.refused_lists > 0:
            self.refused_lists -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": each.uid,
                "ContainerName": each.container,
                "ResourceName": each.resource,
                "DeviceIDs": {"-1": list(each.ids)},
                "AllocResp": to_wire(each.response).SerializeToString(),
            }
            for each in self._entries
        ]
        healthy = {resource: self._healthy(resource) for resource in self._endpoints}
        file = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": healthy}, "Checksum": 0}
        scratch = self.plugins / f".{DEVICE_CHECKPOINT}"
        scratch.write_bytes(msgspec.json.encode(file))
        scratch.rename(self.plugins / DEVICE_CHECKPOINT)

    def _by_pod(self) -> Iterator[tuple[tuple[str, str], list[_KubeletEntry]]]:
        pods: dict[tuple[str, str], list[_KubeletEntry]] = {}
        for each in self._entries:
            pods.setdefault((each.namespace, each.pod), []).append(each)
        yield from pods.items()


def _dead(reason: str) -> Unavailable:
    return Unavailable("kubelet", found=f"panic: {reason}", hint="restart it")


def _fill(record: pods_wire.PodResources, entries: Iterable[_KubeletEntry]) -> None:
    for each in entries:
        container = next((found for found in record.containers if found.name == each.container), None)
        container = container or record.containers.add(name=each.container)
        container.devices.add(resource_name=each.resource, device_ids=each.ids)
