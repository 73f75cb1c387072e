"""Managed GPUs: which of their devices are advertised to the kubelet, and the desired layout of each.

Pods come first: their devices stay, their assignments are created. Then come the controller's desired devices for pods
that request devices by name (`spec.desired` of the GPUNode). Other MIG instances stay until their place is
needed; they are not advertised.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.gpunodestate import DesiredDevices
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, is_legal
from tessera.core.node.layouts import DeviceUser, LayoutTarget, exact

__all__ = ["fixed", "offered_devices", "targets"]


def fixed(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node whose layouts are decided by an administrator's label: none of them is managed."""
    return tuple(
        msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(gpu.sharing, allow_repartition=False))
        for gpu in gpus
    )


def offered_devices(
    gpus: Iterable[Gpu], desired: Iterable[DesiredDevices], by_name: Iterable[DeviceId], assigned: Iterable[DeviceId]
) -> Mapping[str, frozenset[DeviceId]]:
    """Return by UUID the devices of each managed GPU to advertise: existing ones that are desired or in use.

    A desired device is withheld while it overlaps another that is used by or assigned to a pod.

    Args:
        gpus: with the sharing in force and the existing layout.
        desired: `spec.desired` of the GPUNode.
        by_name: devices that pods use by name, by the kubelet's record.
        assigned: the devices of assignments: MIG instances, existing or not, and GPUs of which pods were assigned all
            or an amount.

    """
    by_gpu = {each.gpu: each for each in desired}
    devices = tuple(by_name), tuple(assigned)
    return {
        gpu.uuid: _chosen(
            gpu, by_gpu.get(gpu.uuid, DesiredDevices(gpu=gpu.uuid)), *(_on(gpu.uuid, each) for each in devices)
        )
        for gpu in gpus
        if gpu.sharing.managed
    }


def _chosen(
    gpu: Gpu, desired: DesiredDevices, by_name: frozenset[DeviceId], assigned: frozenset[DeviceId]
) -> frozenset[DeviceId]:
    whole, layout = DeviceId(gpu.uuid), gpu.sharing.layout
    there = frozenset((whole,) if layout is None else (DeviceId(gpu.uuid, each) for each in layout))
    return frozenset(
        each
        for each in there & by_name.union(desired.devices)
        if each in by_name or (each not in assigned and _can_be_beside(gpu.model, each, by_name | assigned))
    )


def _can_be_beside(model: GpuModel, device: DeviceId, others: frozenset[DeviceId]) -> bool:
    """Return whether a device fits beside others of its GPU."""
    if device.placement is None:
        return not others
    return DeviceId(device.gpu) not in others and is_legal(model, (*_placed(others), device.placement))


def targets(
    gpus: Iterable[Gpu],
    inventory: Inventory,
    desired: Iterable[DesiredDevices],
    users: Iterable[DeviceUser],
    assigned: Iterable[DeviceId],
) -> tuple[LayoutTarget, ...]:
    """Return the target of each managed GPU that differs from it, by index; used instances are in every target.

    A GPU that cannot match its request because it is in use has no target until it is free.

    Args:
        gpus: with the sharing in force.
        inventory: of the driver.
        desired: `spec.desired` of the GPUNode.
        users: of GPUs and instances, by the kubelet's record and the processes on them.
        assigned: as in `offered_devices`.

    """
    facts = {each.uuid: each for each in inventory.gpus}
    by_gpu = {each.gpu: each for each in desired}
    everybody, devices = {user.device for user in users}, tuple(assigned)
    found = (
        _target(
            gpu,
            facts[gpu.uuid],
            by_gpu.get(gpu.uuid, DesiredDevices(gpu=gpu.uuid)),
            _on(gpu.uuid, everybody),
            _on(gpu.uuid, devices),
        )
        for gpu in gpus
        if gpu.uuid in facts and gpu.sharing.managed
    )
    return tuple(each for each in found if each is not None)


def _target(
    gpu: Gpu, facts: GpuFacts, desired: DesiredDevices, used: frozenset[DeviceId], assigned: frozenset[DeviceId]
) -> LayoutTarget | None:
    if facts.lost or facts.mig is None:
        return None
    whole = DeviceId(gpu.uuid)
    if whole in assigned or (desired.whole and not assigned):
        idle = not used and not _placed(assigned)
        return exact(facts, None) if idle and facts.layout is not None else None
    if not gpu.sharing.can_repartition or (facts.layout is None and used):
        return None
    there = tuple(each.placement for each in facts.instances)
    keep = tuple(each for each in there if whole in used or DeviceId(gpu.uuid, each) in used)
    goal = _goal(facts, desired, keep, _placed(assigned))
    return exact(facts, goal) if set(goal).difference(there) else None


def _goal(facts: GpuFacts, desired: DesiredDevices, keep: Layout, assigned: Layout) -> Layout:
    """Return what is kept, and of the rest, in order of priority, what fits beside it."""
    there = tuple(each.placement for each in facts.instances)
    goal = keep
    for each in (*(each for each in there if each in assigned), *assigned, *desired.instances, *there):
        if each not in goal and is_legal(facts.model, (*goal, each)):
            goal = (*goal, each)
    return tuple(sorted(goal))


def _on(gpu: str, devices: Iterable[DeviceId]) -> frozenset[DeviceId]:
    """Return the devices of one GPU among those of a node."""
    return frozenset(each for each in devices if each.gpu == gpu)


def _placed(devices: Iterable[DeviceId]) -> Layout:
    return tuple(sorted(each.placement for each in devices if each.placement is not None))
