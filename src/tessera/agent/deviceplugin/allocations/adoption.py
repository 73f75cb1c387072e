"""What containers have that the agent's record lacks: by the kubelet's record, else by their pods."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from tessera.agent.pods.podsview import PodsInView, is_ended
from tessera.api.kubernetes.containerlimits import lasting_containers, limits_of, was_created
from tessera.api.kubernetes.podstates import created_ns
from tessera.clients.kube import Object, name_of
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, clashes
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["adopted", "unrecorded"]


def adopted(
    record: tuple[AgentAllocation, ...],
    allocated: Iterable[KubeletAllocation],
    uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
    find: Callable[[str], Object | None],
    capacity_mib: Mapping[DeviceId, int],
    next_ns: int,
) -> Iterator[AgentAllocation]:
    """Yield entries for allocations that the record lacks.

    Args:
        record: the allocations.
        allocated: the kubelet's allocations, and those without ids that `unrecorded` returned.
        uses_of: returns what a container uses by its ids, or its assignment; nothing where that is not known.
        find: returns the pod of a UID.
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
            pod = find(each.uid) or {}
            named = each.resource not in SHARE_RESOURCES
            entry = AgentAllocation(
                resource=each.resource,
                ids=each.device_ids,
                uses=uses,
                uid=each.uid,
                pod=f"{each.namespace}/{each.pod}",
                container=each.container,
                at_ns=created_ns(pod) or next_ns,
                # A container by name keeps its devices; one by assignment is checked at its next start.
                started=not each.device_ids or (named and was_created(pod, each.container)),
            )
            # Pods in the record already came first, however old the other pod is.
            late = any(clashes(record, entry, capacity_mib, ids=named))
            yield msgspec.structs.replace(entry, at_ns=max(entry.at_ns, next_ns)) if late else entry


async def unrecorded(
    view: PodsInView, allocated: tuple[KubeletAllocation, ...], record: Iterable[AgentAllocation]
) -> tuple[KubeletAllocation, ...]:
    """Return the containers with devices that both records lack while their pods run, without ids.

    Args:
        view: the pods of this node.
        allocated: the kubelet's allocations, read after its pods, so that those of each pod in view are there.
        record: the agent's allocations.

    """
    known = {each.container_key for each in record}.union(map(_key, allocated))
    found = [
        KubeletAllocation(
            uid=uid,
            namespace=name_of(pod)[0],
            pod=name_of(pod)[1],
            container=container,
            resource=resource,
            device_ids=(),
        )
        for uid, pod in view.by_uid().items()
        for container, resource, _ in (() if is_ended(pod) else limits_of(pod))
        if (names_device(resource) or resource in SHARE_RESOURCES) and (uid, container, resource) not in known
        # The kubelet may leave out an init container that has come to its end, and what was not created has nothing.
        if container in lasting_containers(pod) and was_created(pod, container)
        if (view.has_lost(uid, container, resource) or not allocated) and not view.left_out(pod, resource)
    ]
    if view.blind or not found:
        return tuple(found)
    asked = frozenset((each.uid, each.container) for each in found)
    running = await asyncio.to_thread(view.running_containers, asked)
    return tuple(each for each in found if (each.uid, each.container) in running)


def _key(allocation: KubeletAllocation) -> tuple[str, str, str]:
    return allocation.uid, allocation.container, allocation.resource
