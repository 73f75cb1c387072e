"""What containers have that the agent's record lacks: by the kubelet's record, else by their pods."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.allocateddevices import container_allocations
from tessera.core.deviceplugin.allocations.clashes import clashes
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode, was_left_out
from tessera.core.deviceplugin.allocations.relocation import uuids_of
from tessera.core.deviceplugin.allocations.unreadableentries import uses_unknown
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "UsesOf",
    "adopted",
    "in_neither_record",
    "lasting_or_running",
    "unknown_shares",
    "with_known_uses",
    "with_lost_starts",
]

UsesOf: TypeAlias = Callable[[KubeletAllocation], tuple[AllocatedDevice, ...] | None]
"""Returns what a container uses by its ids, or its assignment. Nothing while the driver does not list what it has by
name; None where nothing says what it is: it requests units and has no assignment that counts and names listed GPUs, or
it has no ids by name."""


def with_known_uses(record: Iterable[AgentAllocation], uses_of: UsesOf) -> tuple[AgentAllocation, ...]:
    """Return the record with what containers use of which that was not known, as far as it is known by now.

    The driver lists their GPU again, or their assignment counts again.

    Args:
        record: the allocations.
        uses_of: what a container uses.

    """
    return tuple(_with_known_uses(each, uses_of) for each in record)


def _with_known_uses(entry: AgentAllocation, uses_of: UsesOf) -> AgentAllocation:
    named = entry.resource not in SHARE_RESOURCES
    if not entry.pod or not (uses_unknown(entry) or (named and len(entry.uses) < len(uuids_of(entry)))):
        return entry
    (allocation,), before = container_allocations((entry,)), {use.device: use for use in entry.uses}
    uses = uses_of(allocation) or ()
    if not before.keys() < {use.device for use in uses}:
        return entry
    # One by assignment is checked at its next start.
    started = entry.started and (named or not entry.ids)
    return msgspec.structs.replace(entry, uses=tuple(before.get(use.device, use) for use in uses), started=started)


def lasting_or_running(
    allocated: Iterable[KubeletAllocation],
    record: Iterable[AgentAllocation],
    pods: Mapping[str, GatePod],
    running: Container[tuple[str, str]] | None,
) -> Iterator[KubeletAllocation]:
    """Yield the kubelet's allocations of lasting containers, and those of init containers that have not ended.

    What such an init container has, no other container of its pod may have. In a new sandbox of its pod the status has
    the former containers, so that it seems to have ended: its processes tell.

    Args:
        allocated: the kubelet's, also those of init containers.
        record: the agent's; an init container with the ids of another container of its pod has that one's entry.
        pods: by UID.
        running: the containers, by UID of the pod and name, that may have processes; None if not observed.

    """
    known = {(each.uid, each.resource, each.ids) for each in record}
    for each in allocated:
        pod = pods.get(each.uid)
        lasting = pod is None or each.container in pod.lasting
        ended = pod is not None and pod.has_ended(each.container)
        runs = running is not None and (each.uid, each.container) in running
        if lasting or ((runs or not ended) and (each.uid, each.resource, each.device_ids) not in known):
            yield each


def with_lost_starts(
    record: tuple[AgentAllocation, ...],
    pods: Mapping[str, GatePod],
    running: Container[tuple[str, str]] | None,
) -> tuple[AgentAllocation, ...]:
    """Return a record that was read in part, with init containers as started that run and whose start it lacks.

    The start of an init container is recorded as that of another one with the same ids (`lastgate.holders`). Where that
    entry is lost, it runs with what its own says that it was answered. Without devices that is not known.

    Args:
        record: the allocations.
        pods: by UID.
        running: as in `lasting_or_running`.

    """
    started = {(each.uid, each.resource, each.ids) for each in record if each.started}
    return tuple(
        msgspec.structs.replace(each, presumed=False, started=True)
        if each.initial
        and each.presumed
        and each.uid in pods
        and (each.uid, each.resource, each.ids) not in started
        and _may_run(pods[each.uid], each.uid, each.container, running)
        else each
        for each in record
    )


def adopted(
    record: tuple[AgentAllocation, ...],
    allocated: Iterable[KubeletAllocation],
    uses_of: UsesOf,
    pods: Mapping[str, GatePod],
    capacity_mib: Mapping[DeviceId, int],
    next_ns: int,
) -> Iterator[AgentAllocation]:
    """Yield entries for allocations that the record lacks.

    Ids by name count also where the driver does not list their device; `with_known_uses` adds it.

    Args:
        record: the allocations.
        allocated: the kubelet's allocations, and those without ids that `in_neither_record` returned.
        uses_of: what a container uses.
        pods: by UID.
        capacity_mib: memory of each device.
        next_ns: later than every time on record.

    """
    known = {each.container_key for each in record}
    pending = {(each.resource, each.ids) for each in record if not each.uid}
    for each in allocated:
        if each.container_key in known or (each.resource, each.device_ids) in pending:
            continue
        uses, named = uses_of(each) or (), each.resource not in SHARE_RESOURCES
        if uses or named or not each.device_ids:
            pod = pods.get(each.uid, GatePod(name=""))
            # A container by name keeps its devices; one by assignment is checked at its next start.
            started = not each.device_ids or (named and each.container in pod.created)
            entry = msgspec.structs.replace(_entry(each, pod, next_ns), uses=uses, started=started)
            # Pods in the record already came first, however old the other pod is.
            late = any(clashes(record, entry, capacity_mib, ids=named))
            yield msgspec.structs.replace(entry, at_ns=max(entry.at_ns, next_ns)) if late else entry


def unknown_shares(
    record: Iterable[AgentAllocation],
    allocated: Iterable[KubeletAllocation],
    uses_of: UsesOf,
    pods: Mapping[str, GatePod],
    next_ns: int,
    running: Container[tuple[str, str]] | None,
) -> tuple[AgentAllocation, ...]:
    """Return entries without devices for containers with units, if they run, of which it is not known what they use.

    A record that was lost had their assignment; a tenant may have removed it since, or replaced it. Units name no
    device. Or the driver does not list the GPU of their assignment.

    Args:
        record: the allocations.
        allocated: the kubelet's, also those of init containers.
        uses_of: what a container uses.
        pods: by UID.
        next_ns: later than every time on record.
        running: as in `lasting_or_running`.

    """
    record = tuple(record)
    known = {each.container_key for each in record}
    # What an init container had that has ended is not what another one runs with.
    units = {(each.uid, each.resource, each.ids) for each in record if not each.initial}
    return tuple(
        msgspec.structs.replace(_entry(each, pods[each.uid], next_ns), started=True)
        for each in allocated
        if each.resource in SHARE_RESOURCES and each.device_ids and each.uid in pods
        if each.container_key not in known and (each.uid, each.resource, each.device_ids) not in units
        if _may_run(pods[each.uid], each.uid, each.container, running) and not uses_of(each)
    )


def in_neither_record(
    record: Iterable[AgentAllocation],
    allocated: tuple[KubeletAllocation, ...],
    pods: Mapping[str, GatePod],
    has_lost: Callable[[str, str, str], bool],
    node: RegisteredNode,
    running: Container[tuple[str, str]] | None,
) -> tuple[KubeletAllocation, ...]:
    """Return the containers that both records lack, without ids: they have devices if they run.

    Args:
        record: the agent's allocations.
        allocated: the kubelet's, read after its pods, so that those of each pod are there.
        pods: by UID.
        has_lost: returns whether the kubelet's record can be read and lacks a container (UID of the pod, name,
            resource).
        node: the Node object.
        running: as in `lasting_or_running`.

    """
    known = {each.container_key for each in record}.union(each.container_key for each in allocated)
    return tuple(
        KubeletAllocation(uid=uid, namespace=namespace, pod=name, container=container, resource=resource, device_ids=())
        for uid, pod in pods.items()
        for namespace, _, name in [pod.name.partition("/")]
        for container, resource in sorted(pod.requests)
        if node.is_of_gpus(resource) and (uid, container, resource) not in known
        if _may_run(pod, uid, container, running)
        if (has_lost(uid, container, resource) or not allocated) and not was_left_out(pod, resource, node)
    )


def _may_run(pod: GatePod, uid: str, container: str, running: Container[tuple[str, str]] | None) -> bool:
    return pod.may_run(container, has_process=None if running is None else (uid, container) in running)


def _entry(allocation: KubeletAllocation, pod: GatePod, next_ns: int) -> AgentAllocation:
    return AgentAllocation(
        resource=allocation.resource,
        ids=allocation.device_ids,
        uid=allocation.uid,
        pod=f"{allocation.namespace}/{allocation.pod}",
        container=allocation.container,
        at_ns=pod.created_ns or next_ns,
    )
