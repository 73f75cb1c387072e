"""What containers have that the agent's record lacks: by the kubelet's record, else by their pods."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.clashes import clashes
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.unreadableentries import uses_unknown
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["RegisteredNode", "adopted", "initial_by_name", "unassigned", "unrecorded", "was_left_out", "without_known"]


class RegisteredNode(msgspec.Struct, frozen=True, kw_only=True):
    """The Node object of the agent's node."""

    resources: frozenset[str] = frozenset()
    """The names that it has, also with 0; none where there is no object, or its kubelet has not reported yet."""
    created_s: float = math.inf
    """When it was created, in seconds since 1970 of the API server's clock; infinite if unknown."""


def adopted(
    record: tuple[AgentAllocation, ...],
    allocated: Iterable[KubeletAllocation],
    uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
    pods: Mapping[str, GatePod],
    capacity_mib: Mapping[DeviceId, int],
    next_ns: int,
) -> Iterator[AgentAllocation]:
    """Yield entries for allocations that the record lacks.

    Args:
        record: the allocations.
        allocated: the kubelet's allocations, and those without ids that `unrecorded` returned.
        uses_of: returns what a container uses by its ids, or its assignment; nothing where that is not known.
        pods: by UID.
        capacity_mib: memory of each device.
        next_ns: later than every time on record.

    """
    known = {each.container_key for each in record}
    pending = {(each.resource, each.ids) for each in record if not each.uid}
    for each in allocated:
        if _key(each) in known or (each.resource, each.device_ids) in pending:
            continue
        uses = uses_of(each)
        if uses or not each.device_ids:
            pod = pods.get(each.uid, GatePod(name=""))
            named = each.resource not in SHARE_RESOURCES
            # A container by name keeps its devices; one by assignment is checked at its next start.
            started = not each.device_ids or (named and each.container in pod.created)
            entry = msgspec.structs.replace(_entry(each, pod, next_ns), uses=uses, started=started)
            # Pods in the record already came first, however old the other pod is.
            late = any(clashes(record, entry, capacity_mib, ids=named))
            yield msgspec.structs.replace(entry, at_ns=max(entry.at_ns, next_ns)) if late else entry


def initial_by_name(allocated: Iterable[KubeletAllocation], pods: Mapping[str, GatePod]) -> Iterator[KubeletAllocation]:
    """Yield the kubelet's allocations by name of init containers that have not ended.

    What such a container has, no other container of its pod may have. Shares are left out: the pod's assignment says
    what it uses, and where that does not count, `unassigned` has it.

    Args:
        allocated: the kubelet's, also those of init containers.
        pods: by UID.

    """
    for each in allocated:
        pod = pods.get(each.uid)
        if pod is None or each.container in pod.lasting or pod.has_ended(each.container):
            continue
        if each.resource not in SHARE_RESOURCES:
            yield each


def unassigned(
    record: Iterable[AgentAllocation],
    allocated: Iterable[KubeletAllocation],
    uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
    pods: Mapping[str, GatePod],
    next_ns: int,
    *,
    blind: bool,
) -> tuple[AgentAllocation, ...]:
    """Return entries without devices for containers with units, if they run, whose assignment does not count.

    A record that was lost had their assignment; a tenant may have removed it since, or replaced it. Units name no
    device.

    Args:
        record: the allocations.
        allocated: the kubelet's.
        uses_of: as in `adopted`.
        pods: by UID.
        next_ns: later than every time on record.
        blind: whether processes cannot be observed; where they can, the caller leaves out the containers without any.

    """
    known, has_process = {each.container_key for each in record}, None if blind else True
    return tuple(
        msgspec.structs.replace(_entry(each, pods[each.uid], next_ns), started=True)
        for each in allocated
        if each.resource in SHARE_RESOURCES and each.device_ids and each.uid in pods
        if pods[each.uid].may_run(each.container, has_process=has_process)
        if _key(each) not in known and not uses_of(each)
    )


def without_known(
    record: Iterable[AgentAllocation],
    allocated: Iterable[KubeletAllocation],
    uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
) -> tuple[AgentAllocation, ...]:
    """Return the record without the entries of `unassigned` whose assignment counts by now: they are adopted.

    Args:
        record: the allocations.
        allocated: the kubelet's.
        uses_of: as in `adopted`.

    """
    units = {_key(each): each for each in allocated if each.resource in SHARE_RESOURCES and each.device_ids}
    return tuple(
        each
        for each in record
        if not (uses_unknown(each) and each.container_key in units and uses_of(units[each.container_key]))
    )


def unrecorded(
    record: Iterable[AgentAllocation],
    allocated: tuple[KubeletAllocation, ...],
    pods: Mapping[str, GatePod],
    has_lost: Callable[[str, str, str], bool],
    node: RegisteredNode,
    *,
    blind: bool,
) -> tuple[KubeletAllocation, ...]:
    """Return the containers that both records lack, without ids: they have devices if they run.

    Args:
        record: the agent's allocations.
        allocated: the kubelet's, read after its pods, so that those of each pod are there.
        pods: by UID.
        has_lost: returns whether the kubelet's record can be read and lacks a container (UID of the pod, name,
            resource).
        node: the Node object.
        blind: whether processes cannot be observed; where they can, the caller leaves out the containers without any.

    """
    has_process = None if blind else True
    known = {each.container_key for each in record}.union(map(_key, allocated))
    return tuple(
        KubeletAllocation(uid=uid, namespace=namespace, pod=name, container=container, resource=resource, device_ids=())
        for uid, pod in pods.items()
        for namespace, _, name in [pod.name.partition("/")]
        for container, resource in sorted(pod.requests)
        if (names_device(resource) or resource in SHARE_RESOURCES) and (uid, container, resource) not in known
        # The assignment says what an init container's share is; docs/allocation.md says what if that was removed too.
        if (names_device(resource) or container in pod.lasting & pod.created)
        if pod.may_run(container, has_process=has_process)
        if (has_lost(uid, container, resource) or not allocated) and not was_left_out(pod, resource, node)
    )


def was_left_out(pod: GatePod, resource: str, node: RegisteredNode) -> bool:
    """Return whether a kubelet runs a pod without a resource that it requests, as its node never had it.

    A kubelet leaves such a resource out of a pod that names its node itself. A Node keeps the names of all resources
    that a device plugin ever registered, with 0 of them; a user can write neither those nor the pod's status. It is no
    proof where the pod may be older than the Node object, whose names are lost when it is deleted (a static pod's
    status is then written anew), nor where a driver for DRA serves the resource.
    Source: Kubernetes `pkg/kubelet/lifecycle/predicate.go`, `removeMissingExtendedResources`, and
    `pkg/kubelet/nodestatus/setters.go`, `MachineInfo`.

    Args:
        pod: which runs.
        resource: that a container of it requests.
        node: its Node object.

    """
    if not node.resources or resource in node.resources or pod.static or pod.has_resource_claim:
        return False
    return pod.started_s > node.created_s


def _entry(allocation: KubeletAllocation, pod: GatePod, next_ns: int) -> AgentAllocation:
    return AgentAllocation(
        resource=allocation.resource,
        ids=allocation.device_ids,
        uid=allocation.uid,
        pod=f"{allocation.namespace}/{allocation.pod}",
        container=allocation.container,
        at_ns=pod.created_ns or next_ns,
    )


def _key(allocation: KubeletAllocation) -> tuple[str, str, str]:
    return allocation.uid, allocation.container, allocation.resource
