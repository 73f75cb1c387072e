"""Attributes memory and load to containers: of exclusive devices, and of shared ones by process.

A container with an exclusive device uses all that is measured of it. On a shared device it uses what its processes
do, by their control groups. Values that the driver does not report, or only for several together, are None.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Instance
from tessera.core.gpu.readings import EngineActivity, GpuReading, ProcessReading
from tessera.core.usage.plausible import discard_implausible, most_mib

__all__ = ["ENDED", "ContainerDevice", "ContainerUsage", "DeviceUsage", "GpuUsage", "Owner", "attribute_usage"]


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a container is allocated, or its part of one, as metrics name it."""

    namespace: str
    pod: str
    container: str
    uid: str
    """Of the pod."""
    device: DeviceId
    exclusive: bool = True
    """Whether the device is exclusive."""
    replica: bool = False
    """Whether its allocation is replicas of a shared device (time-slicing, MPS), not an amount of memory."""
    allocated_mib: int | None = None
    """None where its part of a shared device is unknown."""

    @property
    def name(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"

    @property
    def key(self) -> tuple[str, str]:
        """The container, as in `Owner`."""
        return self.uid, self.container


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The container of a process."""

    uid: str
    """Of the pod."""
    container: str = ""
    """Empty if only the pod is known."""


ENDED: Final = Owner(uid="")
"""Of a process that has exited: it holds no memory, and what it computed may be any container's."""


def _busy(activity: EngineActivity | None, gpu_percent: float | None) -> float | None:
    return gpu_percent if activity is None or activity.sm_percent is None else activity.sm_percent


class ContainerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of a container on a device."""

    allocation: ContainerDevice
    memory_mib: int | None = None
    gpu_percent: float | None = None
    activity: EngineActivity | None = None
    """Of an exclusive device."""

    @property
    def busy_percent(self) -> float | None:
        """How busy it keeps its device."""
        return _busy(self.activity, self.gpu_percent)


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU without MIG, or a MIG instance, and its users."""

    device: DeviceId
    instance: Instance | None = None
    memory_mib: int
    """Allocatable memory."""
    used_mib: int | None = None
    gpu_percent: int | None = None
    activity: EngineActivity | None = None
    containers: tuple[ContainerUsage, ...] = ()
    """Sorted."""
    unattributed_mib: int | None = None
    """Memory in use by no container; None where unknown."""
    ended_percent: float | None = None
    """Load by processes that exited before their cgroup was read, of any of the containers; None where unknown."""

    @property
    def busy_percent(self) -> float | None:
        """Its active multiprocessors where they are measured, else its utilization."""
        return _busy(self.activity, self.gpu_percent)

    @property
    def exclusive_allocation(self) -> ContainerDevice | None:
        """The allocation of the one container with the exclusive device."""
        exclusive = len(self.containers) == 1 and self.containers[0].allocation.exclusive
        return self.containers[0].allocation if exclusive else None


class GpuUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, its plausible measurements, and its devices."""

    facts: GpuFacts
    reading: GpuReading
    devices: tuple[DeviceUsage, ...] = ()


def attribute_usage(
    facts: GpuFacts,
    reading: GpuReading,
    allocations: Iterable[ContainerDevice],
    owners: Mapping[int, Owner | None] | None,
) -> GpuUsage:
    """Return the usage of a GPU, by container.

    Args:
        facts: the GPU in the inventory.
        reading: the driver's measurements, plausible or not.
        allocations: of its devices; those of missing devices are left out.
        owners: the containers of processes by pid: None for one in no pod, `ENDED` for one that has exited, and none
            for one whose container is unknown, which may be any; None where processes of other pods cannot be observed.

    """
    reading = discard_implausible(reading, facts)
    by_device = defaultdict[DeviceId, list[ContainerDevice]](list)
    for allocation in _merge_allocations(allocations):
        by_device[allocation.device].append(allocation)
    if facts.layout is None:
        device = DeviceUsage(
            device=DeviceId(facts.uuid),
            memory_mib=facts.memory_mib,
            used_mib=reading.memory_used_mib,
            gpu_percent=reading.gpu_percent,
            activity=reading.activity,
        )
        devices = [
            _attribute_to_containers(device, by_device[device.device], reading.processes, owners, most_mib(facts))
        ]
    else:
        devices = []
        measured = {each.placement: each for each in reading.instances}
        for instance in facts.instances:
            own = measured.get(instance.placement)
            device = DeviceUsage(
                device=DeviceId(facts.uuid, instance.placement),
                instance=instance,
                memory_mib=instance.memory_mib,
                used_mib=None if own is None else own.memory_used_mib,
                activity=None if own is None else own.activity,
            )
            on = None if own is None else _select_processes(instance, reading.processes)
            devices.append(_attribute_to_containers(device, by_device[device.device], on, owners, most_mib(instance)))
    return GpuUsage(facts=facts, reading=reading, devices=tuple(devices))


def _merge_allocations(allocations: Iterable[ContainerDevice]) -> Iterable[ContainerDevice]:
    """Return each container once for each of its devices, sorted, with its total allocation of it."""
    found: dict[tuple[tuple[str, str], DeviceId], ContainerDevice] = {}
    for each in dict.fromkeys(allocations):
        known = found.setdefault((each.key, each.device), each)
        if known is not each:
            parts = (known.allocated_mib, each.allocated_mib)
            allocated_mib = None if None in parts else sum(part or 0 for part in parts)
            exclusive, replica = known.exclusive and each.exclusive, known.replica or each.replica
            found[each.key, each.device] = msgspec.structs.replace(
                known, allocated_mib=allocated_mib, exclusive=exclusive, replica=replica
            )
    return sorted(found.values(), key=lambda each: (each.namespace, each.pod, each.container, each.uid))


def _select_processes(
    instance: Instance, processes: tuple[ProcessReading, ...] | None
) -> tuple[ProcessReading, ...] | None:
    """Return the processes on an instance; None if they are unknown, or the instance of one of them is."""
    if processes is None or any(each.gpu_instance is None for each in processes):
        return None
    return tuple(each for each in processes if each.gpu_instance == instance.gpu_instance)


def _attribute_to_containers(
    device: DeviceUsage,
    allocations: list[ContainerDevice],
    processes: Sequence[ProcessReading] | None,
    owners: Mapping[int, Owner | None] | None,
    most_mib: int,
) -> DeviceUsage:
    """Return a device with the usage of each of its containers."""
    if len(allocations) == 1 and allocations[0].exclusive:
        user = ContainerUsage(
            allocation=allocations[0],
            memory_mib=device.used_mib,
            gpu_percent=device.gpu_percent,
            activity=device.activity,
        )
        return msgspec.structs.replace(device, containers=(user,), unattributed_mib=0)
    if processes is None or any(owners is None or each.pid not in owners for each in processes):
        unknown = tuple(ContainerUsage(allocation=each) for each in allocations)
        return msgspec.structs.replace(
            device, containers=unknown, unattributed_mib=None if allocations else device.used_mib
        )
    own = defaultdict[tuple[str, str], list[ProcessReading]](list)
    ended = [each for each in processes if owners is not None and owners[each.pid] == ENDED]
    processes = [each for each in processes if each not in ended]
    for process in processes:
        owner = None if owners is None else owners[process.pid]
        if owner is not None:
            own[owner.uid, owner.container].append(process)
    containers = tuple(_attribute_to_container(allocation, allocations, own, most_mib) for allocation in allocations)
    known = [each.memory_mib for each in containers if each.memory_mib is not None]
    if sum(known) > most_mib + len(processes):
        containers = tuple(msgspec.structs.replace(each, memory_mib=None) for each in containers)
        known = []
    complete = device.used_mib is not None and len(known) == len(containers)
    unattributed_mib = max((device.used_mib or 0) - sum(known), 0) if complete else None
    return msgspec.structs.replace(
        device,
        containers=containers,
        unattributed_mib=unattributed_mib,
        ended_percent=_ended_percent(device, processes, ended),
    )


def _ended_percent(
    device: DeviceUsage, running: Sequence[ProcessReading], ended: Sequence[ProcessReading]
) -> float | None:
    """Return the load of a shared device by processes that have exited.

    Where the driver does not sample processes, as under MIG, it is all of the load if no process runs.
    """
    percent = [each.sm_percent for each in ended if each.sm_percent is not None]
    if len(percent) == len(ended) and (ended or device.instance is None):
        return min(sum(percent), 100.0)
    return None if running else device.busy_percent


def _attribute_to_container(
    allocation: ContainerDevice,
    allocations: list[ContainerDevice],
    by_container: Mapping[tuple[str, str], list[ProcessReading]],
    most_mib: int,
) -> ContainerUsage:
    """Return the usage of a container's processes; None if some may belong to another container of its pod.

    No container has more memory than the device, beyond the rounding of each process: more is not plausible.
    """
    vague, same_pod = (
        by_container.get((allocation.uid, ""), []),
        [each for each in allocations if each.uid == allocation.uid],
    )
    if vague and len(same_pod) > 1:
        return ContainerUsage(allocation=allocation)
    processes = [*by_container.get(allocation.key, []), *vague]
    memory_mib = [each.memory_mib for each in processes if each.memory_mib is not None]
    percent = [each.sm_percent for each in processes if each.sm_percent is not None]
    known = len(memory_mib) == len(processes) and sum(memory_mib) <= most_mib + len(processes)
    return ContainerUsage(
        allocation=allocation,
        memory_mib=min(sum(memory_mib), most_mib) if known else None,
        gpu_percent=min(sum(percent), 100) if len(percent) == len(processes) else None,
    )
