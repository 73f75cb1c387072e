"""Managed GPUs: their desired devices, the devices in use, and which of them agree."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.core.cluster.gpunodestate import DesiredDevices
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.snapshot import Gpu, NodeName, Running, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement, is_legal, placement_at, placements
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.partitioning.records import PartitioningState
from tessera.core.workload.need import Form

__all__ = [
    "ManagedGpu",
    "creates_by_name",
    "desired_of",
    "device_of",
    "managed_gpus",
    "reserved",
    "shown",
    "with_unrecorded",
]


class ManagedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that Tessera partitions."""

    node: NodeName
    gpu: Gpu
    """With the existing layout."""
    present: frozenset[DeviceId]
    """What is desired now."""
    offered: frozenset[DeviceId] = frozenset()
    """Devices that the kubelet may allocate, desired or not any more; none of a fixed GPU, which is the kubelet's."""
    allocated: frozenset[DeviceId] = frozenset()
    """Devices that pods use for exact requests."""
    other: tuple[Share, ...] = ()
    """Other shares in use: amounts, and MIG instances created for needs."""

    @property
    def idle(self) -> frozenset[DeviceId]:
        """Desired and free devices."""
        return self.present - self.allocated

    @property
    def disputed(self) -> bool:
        """Whether a desired device overlaps one in use, or claimed by a server."""
        return any(not self.agrees((*self.allocated, device), self.other) for device in self.idle)

    @property
    def leaving(self) -> frozenset[DeviceId]:
        """Devices that are no longer desired and may still be allocated: the agent is withdrawing them."""
        return self.offered - self.present - self.allocated

    @property
    def lacking(self) -> frozenset[DeviceId]:
        """Desired devices that do not exist; the whole GPU exists where MIG is off."""
        layout = self.gpu.sharing.layout
        there: set[Placement | None] = {None} if layout is None else set(layout)
        return frozenset(device for device in self.present if device[1] not in there)

    def agrees(self, devices: Iterable[DeviceId], shares: Iterable[Share]) -> bool:
        """Return whether the GPU can have these devices beside these shares of pods."""
        places = [place for _, place in devices]
        used = [_placement(self.gpu, share) for share in shares if share.profile is not None]
        amounts = any(share.profile is None for share in shares)
        instances = [*(place for place in places if place is not None), *used]
        if None in places:
            return len(places) == 1 and not instances and not amounts
        return not (amounts and instances) and is_legal(self.gpu.model, tuple(sorted(instances)))


def managed_gpus(observed: PartitioningState) -> Iterator[ManagedGpu]:
    """Yield the GPUs that may be repartitioned, in order of node and index."""
    states = {state.name: state for state in observed.states}
    shares: dict[tuple[NodeName, int], list[Share]] = defaultdict(list)
    for running in observed.running:
        for share in running.assignment.shares:
            shares[running.assignment.node, share.gpu].append(share)
    for node in observed.nodes:
        state = states.get(node.name)
        if state is None or node.name in observed.fixed:
            continue
        desired = {each.gpu: frozenset(each.devices) for each in state.desired}
        offered = {each.gpu: frozenset(each.devices) for each in state.offered}
        for gpu in filter(creates_by_name, node.gpus):
            by_name = offered.get(gpu.uuid, frozenset()) if gpu.sharing.managed else frozenset()
            managed = ManagedGpu(node=node.name, gpu=gpu, present=desired.get(gpu.uuid, frozenset()), offered=by_name)
            used = shares.get((node.name, gpu.index))
            yield _with_devices_in_use(managed, used) if used else managed


def _with_devices_in_use(managed: ManagedGpu, shares: Iterable[Share]) -> ManagedGpu:
    """Return the GPU with its devices in use.

    A record is an annotation of a pod: an instance that the GPU does not support, or not beside the others, is no
    device, and must not become desired.
    """
    possible = {None, *placements(managed.gpu.model)}
    used = [share for share in shares if device_of(managed.gpu, share)[1] in possible]
    devices: list[DeviceId] = []
    for device in sorted({device_of(managed.gpu, share) for share in used if _is_exact(share)}, key=DeviceId.order):
        if managed.agrees((*devices, device), ()):
            devices.append(device)
    other = tuple(share for share in used if not _is_exact(share))
    return msgspec.structs.replace(managed, allocated=frozenset(devices), other=other)


def creates_by_name(gpu: Gpu) -> bool:
    """Return whether devices may be created on a GPU for pods that request them by name."""
    sharing = gpu.sharing
    return sharing.creates_devices and (
        sharing.can_repartition or (Mode.WHOLE in sharing.modes and sharing.allocator == "kubelet")
    )


def device_of(gpu: Gpu, share: Share) -> DeviceId:
    """Return the device that a share is, or lies on."""
    return DeviceId(gpu.uuid, None if share.profile is None else _placement(gpu, share))


def desired_of(gpu: str, devices: Iterable[DeviceId]) -> DesiredDevices:
    """Return the devices of one GPU together."""
    places = [place for _, place in devices]
    instances = tuple(sorted(place for place in places if place is not None))
    return DesiredDevices(gpu=gpu, whole=None in places, instances=instances)


def reserved(managed: ManagedGpu) -> tuple[Share, ...]:
    """Return the idle desired devices of a GPU as shares, if they agree with its devices in use."""
    return _beside(managed, managed.idle)


def _beside(managed: ManagedGpu, devices: Iterable[DeviceId]) -> tuple[Share, ...]:
    return tuple(
        named_share(managed.gpu, place)
        for _, place in sorted(devices, key=DeviceId.order)
        if managed.agrees((*managed.allocated, DeviceId(managed.gpu.uuid, place)), managed.other)
    )


def with_unrecorded(observed: PartitioningState) -> PartitioningState:
    """Return the observation, with pods of unknown devices using idle devices of their nodes.

    The kubelet gave them desired devices, or ones that are being withdrawn at the same time.
    """
    idle: dict[tuple[NodeName, str], list[Share]] = defaultdict(list)
    gpus = tuple(managed_gpus(observed))
    for shares in (reserved, _leaving):
        for managed in gpus:
            for share in shares(managed):
                idle[managed.node, share.resource].append(share)
    running = tuple(each if each.assignment.shares else _unrecorded(each, idle) for each in observed.running)
    return msgspec.structs.replace(observed, running=running)


def _leaving(managed: ManagedGpu) -> tuple[Share, ...]:
    """Return the devices that are being withdrawn, if they agree with those in use."""
    return _beside(managed, managed.leaving)


def _unrecorded(running: Running, idle: Mapping[tuple[NodeName, str], list[Share]]) -> Running:
    """Return a pod with idle devices of the requested names; these are no longer idle."""
    node = running.assignment.node
    shares = []
    for request in (request for request in running.pod.need.requests if request.form is Form.EXACT):
        there = idle.get((node, request.resource), [])
        shares += there[: request.count]
        del there[: request.count]
    return msgspec.structs.replace(
        running, assignment=msgspec.structs.replace(running.assignment, shares=tuple(shares))
    )


def shown(devices: Iterable[DeviceId]) -> str:
    """Return devices of one GPU in words."""
    return ", ".join(
        "the whole GPU" if place is None else f"{place.profile} at {place.start}"
        for _, place in sorted(devices, key=DeviceId.order)
    )


def _is_exact(share: Share) -> bool:
    """Return whether the kubelet allocated a share under a name of NVIDIA's device plugin."""
    return share.resource.startswith("nvidia.com/")


def _placement(gpu: Gpu, share: Share) -> Placement:
    return placement_at(gpu.model, share.profile or "", share.start or 0)
