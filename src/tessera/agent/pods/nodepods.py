"""The pods of this node: their assignments, and their devices by the kubelet's record."""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tessera.api.kubernetes.containerlimits import containers_in_order
from tessera.api.tessera.pods.assignedrequests import unshown
from tessera.clients.kube import Object, name_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.allocateddevices import container_allocations
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.allocations.poddevices import (
    PodDevices,
    assigned_devices,
    devices_allocated_by_name,
    pod_devices,
)
from tessera.core.deviceplugin.allocations.unreadableentries import UnknownUse
from tessera.core.gpu.deviceids import DeviceId, existing_devices
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.memorycaps import CappedPod, Qos
from tessera.errors import Unavailable

__all__ = ["Assignments", "KubeletResources", "MissingFromRecord", "NodePods", "OwnRecord", "RecordedPods"]

_LACKING_S = 60.0
"""How long a restarted kubelet may take to read its pods."""


class RecordedPods(Protocol):
    """The pods of this node, and their devices by the kubelet's record; `PodsView` is one."""

    def pods(self) -> Iterable[Object]:
        """Return the last observed Pod objects."""

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices by the kubelet's record."""

    @property
    def checkpoint_is_readable(self) -> bool:
        """Whether the kubelet's checkpoint can be read."""


class OwnRecord(Protocol):
    """The agent's own record of allocations; `agent.deviceplugin.allocations` has one."""

    @property
    def entries(self) -> tuple[AgentAllocation, ...]:
        """All allocations."""

    def release(self) -> None:
        """Forget allocations of pods that have ended."""

    async def observe_unknown_uses(self) -> Mapping[str, UnknownUse]:
        """Observe and return the running pods of which no record says what they use, by UID."""


class Assignments(Protocol):
    """The assignments of this node's pods; `agent.deviceplugin.containers.shares.ShareAllocator` is one."""

    def assigned_requests(self) -> tuple[AssignedRequest, ...]:
        """Return the assignments after all exchanges."""

    async def refresh(self) -> None:
        """Read objects and assignments from the API server."""


class KubeletResources(Protocol):
    """The resources of GPUs that the kubelet knows: others are in no record; `agent.watchednode.WatchedNode` is one."""

    @property
    def gpu_resources(self) -> Container[str]:
        """Their names."""


class MissingFromRecord:
    """Running pods missing from the kubelet's record: a restarted kubelet has not read its pods yet.

    A pod that is missing for a minute never comes, such as one that ran before its resource was registered; nor does
    one that is missing from a checkpoint that can be read, as a kubelet has all of it from its start.

    Args:
        clock_s: a monotonic clock.

    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._since_s: dict[str, float] = {}

    def pods(
        self,
        objects: Iterable[Object],
        record: Iterable[KubeletAllocation],
        names: Container[str],
        *,
        is_checkpoint: bool,
    ) -> tuple[str, ...]:
        """Return those that may come yet.

        Args:
            objects: as `unshown`.
            record: as `unshown`.
            names: as `unshown`.
            is_checkpoint: whether the record is the kubelet's checkpoint, which can be read.

        """
        now_s = self._clock_s()
        self._since_s = {each: self._since_s.get(each, now_s) for each in unshown(objects, record, names)}
        lacking = () if is_checkpoint else self._since_s.items()
        return tuple(each for each, since_s in lacking if now_s - since_s <= _LACKING_S)


class NodePods:
    """The pods of this node.

    Args:
        view: the pods, and the kubelet's record.
        record: the agent's own record.
        assignments: of these pods.
        node: whose kubelet it is.
        clock_s: a monotonic clock.

    """

    def __init__(
        self,
        view: RecordedPods,
        record: OwnRecord,
        assignments: Assignments,
        node: KubeletResources,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._record = record
        self._assignments = assignments
        self._node = node
        self._missing = MissingFromRecord(clock_s)

    async def refresh(self) -> None:
        """Read the pods and their assignments from the API server.

        Raises:
            TesseraError: the API server does not answer.

        """
        await self._assignments.refresh()

    @property
    def shares(self) -> tuple[Share, ...]:
        """All assigned shares."""
        return tuple(share for request in self._assignments.assigned_requests() for share in request.shares)

    @property
    def by_pod(self) -> tuple[CappedPod, ...]:
        """The shares of each pod that has any, with the names of its cgroup."""
        objects = {name_of(each): each for each in self._view.pods()}
        requests: dict[tuple[str, str], list[AssignedRequest]] = {}
        for request in self._assignments.assigned_requests():
            requests.setdefault((request.key.namespace, request.key.pod), []).append(request)
        found = []
        for name, own in requests.items():
            steps = tuple(_steps(own, containers_in_order(objects[name])))
            qos_class = (objects[name].get("status") or {}).get("qosClass")
            qos: Qos = qos_class if qos_class in {"Guaranteed", "Burstable"} else "BestEffort"
            found.append(CappedPod(uid=objects[name]["metadata"].get("uid", ""), qos=qos, steps=steps))
        return tuple(found)

    def assigned_devices(self, inventory: Inventory) -> frozenset[DeviceId]:
        """Return the devices of assignments, existing or not; a GPU for an amount or all of it."""
        return assigned_devices(self._assignments.assigned_requests(), inventory)

    async def by_name(self, inventory: Inventory) -> frozenset[DeviceId]:
        """Return the devices that pods use by name.

        Raises:
            Unavailable: as `pod_devices`.

        """
        return devices_allocated_by_name(await self._trusted(), inventory)

    async def pod_devices(self, inventory: Inventory) -> tuple[PodDevices, ...]:
        """Return the devices that pods use; by the assignment of pods that have one.

        Devices in an answer of `Allocate` count before the kubelet's record shows the holder: its container has UUIDs,
        which recreated instances do not have. Until then the pod has no name.

        Raises:
            Unavailable: the kubelet does not answer, or has just restarted and does not show a running pod yet.

        """
        known = pod_devices(await self._trusted(), self._assignments.assigned_requests(), inventory, by_ids=False)
        uuids = existing_devices(inventory)
        own = (
            (each.pod, dict.fromkeys(uuids[use.device] for use in each.uses if use.device in uuids))
            for each in self._record.entries
        )
        return (*known, *(PodDevices(pod=pod, devices=tuple(devices)) for pod, devices in own if pod or devices))

    async def devices_by_pod(self, inventory: Inventory) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the pods that use devices, `namespace/name`, each with their ids.

        Pods of which no record says what they use may use something of each GPU: they have the ids of all.

        Raises:
            Unavailable: as `pod_devices`.

        """
        known = [(each.pod, each.devices) for each in await self.pod_devices(inventory)]
        gpus = tuple(gpu.uuid for gpu in inventory.gpus)
        return [*known, *((each.pod, gpus) for each in (await self._record.observe_unknown_uses()).values())]

    async def _trusted(self) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices: by the kubelet's record, and by ours where the kubelet has forgotten one.

        A record from which a running pod may be missing does not count (`MissingFromRecord`).
        """
        self._record.release()
        readable = self._view.checkpoint_is_readable
        own = container_allocations(self._record.entries)
        found = {each.key: each for each in (*own, *await self._view.devices_of_lasting_containers())}
        record = tuple(found[key] for key in sorted(found))
        missing = self._missing.pods(self._view.pods(), record, self._node.gpu_resources, is_checkpoint=readable)
        if not missing:
            return record
        raise Unavailable(
            "the record of devices",
            found=f"it lacks pods that run with devices: {', '.join(missing[:3])}",
            hint="the agent tries again: a kubelet that has just started has not read all pods yet",
        )


def _steps(requests: Sequence[AssignedRequest], order: Sequence[str]) -> Iterator[tuple[Share, ...]]:
    """Yield what a pod uses at once, as `CappedPod.steps` has it."""
    lasting = [each for each in requests if not each.initial]
    yield tuple(share for each in lasting for share in each.shares)
    for one in (each for each in requests if each.initial):
        earlier = frozenset(order[: order.index(one.key.container)])
        beside = (share for each in lasting if each.key.container in earlier for share in each.shares)
        yield (*one.shares, *beside)
