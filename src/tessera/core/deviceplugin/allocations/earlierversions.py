"""Completes entries of the record that agents of earlier versions wrote, with less in them than is needed now."""

import re
from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from tessera.core.cluster.mpstargets import mps_key
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    AssignedDevices,
    Exclusivity,
)
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.containerresponse import ContainerResponse, visible_devices
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.node.nodesharing import ListStrategy
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "assigned_uses",
    "is_vague",
    "supplemented",
    "with_answer",
    "with_answers",
    "with_strategies",
]

_INDEX = re.compile(r"\d+(:\d+)?", re.ASCII)
_LIMIT = re.compile(r"0=(\d{1,9})M", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-.+", re.ASCII)


def is_vague(entry: AgentAllocation) -> bool:
    """Return whether it is unknown if an MPS daemon serves a shared device of a container."""
    return any(use.mps is None and use.exclusivity is not Exclusivity.EXCLUSIVE for use in entry.uses)


def supplemented(
    record: Iterable[AgentAllocation],
    pods: Mapping[str, GatePod],
    assigned: AssignedDevices,
    running: Container[str],
    daemons: Container[str],
) -> tuple[AgentAllocation, ...]:
    """Return the record with what it lacks, as far as that can be known.

    That is where a container stands among those of its pod, by the pod; and whether an MPS daemon serves it: by its
    assignment, or, of replicas, by whether its device has a daemon while the pod runs. A pod without a process, as
    after a reboot, says nothing about daemons.

    Args:
        record: the allocations.
        pods: by UID.
        assigned: what containers use by their assignment.
        running: UIDs of the pods that have processes.
        daemons: the keys (`mps_key`) of the MPS daemons on record.

    """
    return tuple(_supplemented(each, pods.get(each.uid), assigned, running, daemons) for each in record)


def _supplemented(
    entry: AgentAllocation,
    pod: GatePod | None,
    assigned: AssignedDevices,
    running: Container[str],
    daemons: Container[str],
) -> AgentAllocation:
    place = pod.place(entry.container) if pod is not None else -1
    if pod is not None and place >= 0:
        entry = msgspec.structs.replace(entry, order=place, initial=entry.container not in pod.lasting)
    if not is_vague(entry):
        return entry
    if entry.resource in SHARE_RESOURCES:
        uses = assigned.get(entry.container_key, ())
        same = [msgspec.structs.replace(use, mps=None) for use in uses] == list(entry.uses)
        return msgspec.structs.replace(entry, uses=uses) if same else entry
    if entry.uid not in running:
        return entry
    return msgspec.structs.replace(entry, uses=tuple(_with_daemon(use, daemons) for use in entry.uses))


def _with_daemon(use: AllocatedDevice, daemons: Container[str]) -> AllocatedDevice:
    if use.mps is not None or use.exclusivity is Exclusivity.EXCLUSIVE:
        return use
    return msgspec.structs.replace(use, mps=mps_key(*use.device) in daemons)


def with_strategies(
    record: Iterable[AgentAllocation], present: tuple[ListStrategy, ...]
) -> tuple[AgentAllocation, ...]:
    """Return the record with how the containers of pods were answered where that is not recorded: as they would be now.

    It holds from then on: a container's runtime is handed the same answer for its life, whatever is configured later.
    """
    return tuple(
        msgspec.structs.replace(each, strategies=present) if each.pod and not each.strategies else each
        for each in record
    )


def with_answers(
    record: Iterable[AgentAllocation],
    answers: Mapping[tuple[str, str, str], ContainerResponse],
    capacity_mib: Mapping[DeviceId, int],
) -> tuple[AgentAllocation, ...]:
    """Return the record with what `Allocate` answered, where an entry lacks it and the kubelet has it (`with_answer`).

    Args:
        record: the allocations.
        answers: those that the kubelet keeps, by UID of the pod, container and resource.
        capacity_mib: memory of each device.

    """
    found = []
    for each in record:
        answer = None if each.answer_known else answers.get(each.container_key)
        found.append(each if answer is None else with_answer(each, answer, capacity_mib))
    return tuple(found)


def with_answer(
    entry: AgentAllocation, answer: ContainerResponse, capacity_mib: Mapping[DeviceId, int]
) -> AgentAllocation:
    """Return an entry with what the answer of `Allocate` says, as far as the entry lacks it.

    That is into how many replicas by MPS a device is divided, by the memory limit; the indices by which whole devices
    are named; and the UUIDs of a share. The answer stays unknown while the driver does not show the divided device.

    Args:
        entry: of an allocation.
        answer: that the kubelet keeps for it.
        capacity_mib: memory of each device.

    """
    visible = visible_devices(answer)
    if entry.resource in SHARE_RESOURCES:
        named = visible if all(map(_UUID.fullmatch, visible)) else ()
        return msgspec.structs.replace(entry, uuids=entry.uuids or named, answer_known=True)
    if not entry.indices and visible and all(map(_INDEX.fullmatch, visible)):
        entry = msgspec.structs.replace(entry, indices=visible)
    limit = _LIMIT.fullmatch(dict(answer.env).get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
    limit_mib = int(limit[1]) if limit is not None else 0
    if not limit_mib:
        return msgspec.structs.replace(entry, answer_known=True)
    uses = tuple(_divided(use, len(entry.ids), limit_mib, capacity_mib.get(use.device, 0)) for use in entry.uses)
    known = not any(use.mps and not use.clients for use in uses)
    return msgspec.structs.replace(entry, uses=uses, answer_known=known)


def _divided(use: AllocatedDevice, replicas: int, limit_mib: int, capacity_mib: int) -> AllocatedDevice:
    """Return the use of replicas by MPS of one device, which have a limit together, with how many there are of it."""
    if use.exclusivity is not Exclusivity.REPLICA or use.clients or use.mps is False:
        return use
    return msgspec.structs.replace(use, mps=True, clients=round(capacity_mib * replicas / limit_mib))


def assigned_uses(
    record: Iterable[AgentAllocation],
    allocated: Iterable[KubeletAllocation],
    uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...] | None],
) -> AssignedDevices:
    """Return what containers use by their assignment, of entries that do not say whether by an MPS daemon."""
    vague = {each.container_key for each in record if is_vague(each)}
    keys = {each.container_key: each for each in allocated if each.resource in SHARE_RESOURCES}
    return {key: uses_of(each) or () for key, each in keys.items() if key in vague}
