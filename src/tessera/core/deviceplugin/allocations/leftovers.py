"""Which devices do processes use whose pods have ended, and of which there is no record?

The record of allocations tells what a pod has that was deleted by force while its processes run. Where that record
is lost, the driver still lists the processes with a context on a device (docs/allocation.md).
"""

from collections.abc import Container, Iterable, Mapping

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.inventory import GpuProcess, Inventory

__all__ = ["DeviceProcess", "leftovers", "on_devices"]


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a pod with a context on a device."""

    pid: int
    uid: str
    """Of its pod."""
    device: DeviceId
    """The whole GPU where the driver does not say which instance."""
    memory_mib: int = 0
    """What it holds of the device's memory, as far as the driver says."""


def on_devices(
    gpu: str, listed: Iterable[GpuProcess], pods: Mapping[int, str], inventory: Inventory
) -> tuple[DeviceProcess, ...]:
    """Return the processes of pods among those that the driver lists on a GPU.

    Args:
        gpu: its UUID.
        listed: by the driver.
        pods: the UID of each process's pod; a process that is in none, as an MPS server, has none.
        inventory: says where the GPU's instances are.

    """
    places = {
        each.gpu_instance: each.placement for facts in inventory.gpus if facts.uuid == gpu for each in facts.instances
    }
    return tuple(
        DeviceProcess(
            pid=each.pid,
            uid=pods[each.pid],
            device=DeviceId(gpu, None if each.gpu_instance is None else places.get(each.gpu_instance)),
            memory_mib=each.memory_mib or 0,
        )
        for each in listed
        if each.pid in pods
    )


def leftovers(
    record: Iterable[AgentAllocation], new: AgentAllocation, processes: Iterable[DeviceProcess], living: Container[str]
) -> tuple[AgentAllocation, ...]:
    """Return the entries that the record lacks, of processes on the devices that a container is about to use.

    On a device for one pod each such process counts. On one that is shared by amounts of memory the processes of a pod
    count with the memory they have now; replicas promise no memory, so that nothing is to be counted there.

    Args:
        record: the allocations.
        new: the container, with what it is about to use.
        processes: on the GPUs of these devices.
        living: UIDs of the pods that have not ended: what these do with devices that they were not allocated, as
            monitors do, is no reason to refuse others.

    """
    record = tuple(record)
    found = dict[tuple[str, int], AgentAllocation]()
    """By pod and by which of `new.uses`."""
    for each in sorted(processes, key=lambda each: each.pid):
        if each.uid == new.uid or each.uid in living:
            continue
        for number, use in enumerate(new.uses):
            process_use, key = _use(use, each), (each.uid, number)
            others = (*record, *(entry for at, entry in found.items() if at != key))
            if process_use is None or any(entry.uid == each.uid and _covers(entry, process_use) for entry in others):
                continue
            found[key] = _with(found.get(key), process_use) or AgentAllocation(
                resource=new.resource,
                ids=(),
                uses=(process_use,),
                uid=each.uid,
                container=f"process {each.pid}",
                started=True,
            )
    return tuple(found.values())


def _with(former: AgentAllocation | None, process_use: AllocatedDevice) -> AgentAllocation | None:
    """Return the entry of a pod with the memory of a further process of it; None where there is none yet."""
    if former is None or process_use.exclusivity is not Exclusivity.MEMORY:
        return former
    (use,) = former.uses
    more = msgspec.structs.replace(use, memory_mib=use.memory_mib + process_use.memory_mib)
    return msgspec.structs.replace(former, uses=(more,))


def _use(use: AllocatedDevice, process: DeviceProcess) -> AllocatedDevice | None:
    """Return what a process uses of a device, in the way in which the device is given now; None for nothing."""
    if not overlap(use.device, process.device):
        return None
    if use.exclusivity is Exclusivity.EXCLUSIVE:
        return use
    if use.exclusivity is Exclusivity.MEMORY and process.memory_mib:
        return msgspec.structs.replace(use, memory_mib=process.memory_mib)
    return None


def _covers(entry: AgentAllocation, process_use: AllocatedDevice) -> bool:
    return any(overlap(use.device, process_use.device) for use in entry.uses)
