"""A node as the scheduler places pods on it: managed GPUs without layout, and reservations."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tessera.core.cluster.closing import reserved_shares, unhealthy_gpus
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.protocols.allocators import devices_one_by_one
from tessera.core.cluster.snapshot import Gpu, Node, Share
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing

__all__ = ["MOST", "bounded_node", "schedulable_node"]

MOST: Final = 1 << 40
"""Larger amounts of cpu or memory count as this: no node has them."""

_NOTHING = Sharing(modes=())


def schedulable_node(
    node: Node, state: GpuNodeState | None, *, by_name: bool = False
) -> tuple[Node, tuple[Share, ...]]:
    """Return the node with the GPUs its agent reported, and the reserved shares of them.

    A node without an agent, whose `state` is None, is unchanged; of GPUs that are no longer advertised, the last ones
    are reserved. A managed GPU has no layout: what pods
    use of it are instances, and unused ones may be repartitioned. Reserved are desired devices of
    `state`, for pods with exact requests, those that the kubelet may still allocate (`offered`), and
    unhealthy devices.
    Reservations are for `Ledger.put_node`: one that a pod uses already, or that conflicts with shares in use,
    reserves nothing more; a reserved whole GPU takes no new pods even while pods are on it.

    Before the agent has reported, no GPU of the node can be allocated.

    Args:
        node: the node.
        state: its agent's report.
        by_name: True for pods by name alone, for which the kubelet's devices are: only unhealthy ones are reserved.

    """
    if state is None:
        lost = node.gpus[len(node.gpus) - node.lost :]
        unhealthy = tuple(gpu.index for gpu in lost)
        return msgspec.structs.replace(node, unhealthy=unhealthy), tuple(named_share(gpu, None) for gpu in lost)
    if not state.reported:
        closed = tuple(msgspec.structs.replace(gpu, sharing=_NOTHING) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=closed, reported=False), ()
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    reserved = (share for gpu in state.gpus for share in reserved_shares(gpu, state.unhealthy))
    schedulable = msgspec.structs.replace(
        node,
        gpus=tuple(map(_without_layout, state.gpus)),
        reported=True,
        unhealthy=unhealthy_gpus(state.gpus, state.unhealthy),
    )
    return schedulable, (*reserved, *(() if by_name else _by_name(state, gpus)))


def _without_layout(gpu: Gpu) -> Gpu:
    sharing = gpu.sharing
    if not sharing.creates_devices or (sharing.layout is None and not sharing.offers):
        return gpu
    whole = tuple(offer for offer in sharing.offers if offer.placement is None)
    return msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(sharing, layout=None, offers=whole))


def _by_name(state: GpuNodeState, gpus: Mapping[str, Gpu]) -> Iterator[Share]:
    """Yield the kubelet's devices on GPUs that serve needs and shares: its present ones, and its desired ones.

    On a GPU that belongs to the kubelet entirely nothing need be reserved.
    """
    creating = {uuid for uuid, gpu in gpus.items() if gpu.sharing.creates_devices}
    allocating = {uuid for uuid, gpu in gpus.items() if gpu.sharing.scheduler_allocates}
    desired = {each for each in devices_one_by_one(state.desired) if each.gpu in creating}
    offered = {each for each in devices_one_by_one(state.offered) if each.gpu in allocating}
    for uuid, place in sorted(desired | offered, key=DeviceId.order):
        gpu = gpus[uuid]
        known = place is None or any(each.name == place.profile for each in gpu.model.profiles)
        if gpu.sharing.creates_devices:
            yield named_share(gpu, place if known else None)
        else:
            yield from _overlapping(gpu, place)


def _overlapping(gpu: Gpu, offered: Placement | None) -> Iterator[Share]:
    """Yield every client of the devices of a fixed layout that overlap an advertised one."""
    for device in gpu.devices:
        if overlap(DeviceId(gpu.uuid, device.placement), DeviceId(gpu.uuid, offered), {gpu.uuid: gpu.model}):
            for _ in range(device.clients):
                yield Share.of_device(gpu.index, device, device.resource)


def bounded_node(node: Node) -> Node:
    """Return the node with bounded amounts, and each GPU once."""
    if len({gpu.index for gpu in node.gpus}) == len(node.gpus) and max(node.cpu_milli, node.memory_mib) <= MOST:
        return node
    return msgspec.structs.replace(
        node,
        cpu_milli=min(node.cpu_milli, MOST),
        memory_mib=min(node.memory_mib, MOST),
        gpus=tuple({gpu.index: gpu for gpu in node.gpus}.values()),
    )
