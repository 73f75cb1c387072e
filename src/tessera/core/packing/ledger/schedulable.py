"""A node as the scheduler places pods on it: managed GPUs without layout, and what is kept from new pods."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.core.cluster.byname import named_share
from tessera.core.cluster.gpunodestate import GpuNodeState, Sick, Wanted
from tessera.core.cluster.snapshot import Gpu, Node, Share
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing

__all__ = ["schedulable_node"]

_NOTHING = Sharing(modes=())


def schedulable_node(node: Node, state: GpuNodeState | None) -> tuple[Node, tuple[Share, ...]]:
    """Return the node with the GPUs its agent reported, and the shares of them that are kept from new pods.

    A node without an agent, whose `state` is None, is as it is. A managed GPU is without its layout: what pods
    hold of it are cuts, and what nobody holds may be cut anew. Reserved are devices that
    `state` wants to exist, for pods with exact requests, those that the kubelet may still give away (`offered`), and
    unhealthy devices.
    Reservations are for `Ledger.put_node`: one that a pod holds already, or that cannot be held beside what pods hold,
    reserves nothing more; a whole GPU that is reserved gives nothing new even while pods are on it.

    Before the agent has reported, nothing of the node's GPUs can be granted.
    """
    if state is None:
        return node, ()
    if not state.reported:
        closed = tuple(msgspec.structs.replace(gpu, sharing=_NOTHING) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=closed), ()
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    unhealthy = (share for each in state.sick if each.gpu in gpus for share in _unhealthy(gpus[each.gpu], each))
    reserved = (*unhealthy, *_by_name(state, gpus))
    return msgspec.structs.replace(node, gpus=tuple(map(_without_layout, state.gpus))), reserved


def _without_layout(gpu: Gpu) -> Gpu:
    sharing = gpu.sharing
    if not sharing.creates_devices or (sharing.layout is None and not sharing.offers):
        return gpu
    whole = tuple(offer for offer in sharing.offers if offer.placement is None)
    return msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(sharing, layout=None, offers=whole))


def _unhealthy(gpu: Gpu, sick: Sick) -> Iterator[Share]:
    """Yield what keeps new pods off an unhealthy device: the whole GPU, or every client of the instance."""
    if sick.placement is None:
        yield named_share(gpu, None)
        return
    device = next((each for each in gpu.devices if each.placement == sick.placement), None)
    if device is None or gpu.sharing.creates_devices:
        yield named_share(gpu, sick.placement)
        return
    for _ in range(device.clients):
        yield Share.of_device(gpu.index, device, device.resource)


def _by_name(state: GpuNodeState, gpus: Mapping[str, Gpu]) -> Iterator[Share]:
    """Yield what is the kubelet's of GPUs from which needs and shares are served: what it has, and what it shall get.

    Of a GPU that is the kubelet's wholly nothing need be reserved.
    """
    creating = {uuid for uuid, gpu in gpus.items() if gpu.sharing.creates_devices}
    allocating = {uuid for uuid, gpu in gpus.items() if gpu.sharing.scheduler_allocates}
    wanted = {(uuid, place) for uuid, place in _places(state.wanted) if uuid in creating}
    offered = {(uuid, place) for uuid, place in _places(state.offered) if uuid in allocating}
    for uuid, place in sorted(wanted | offered, key=lambda device: (device[0], device[1] or Placement(-1, 0, ""))):
        gpu = gpus[uuid]
        known = place is None or any(each.name == place.profile for each in gpu.model.profiles)
        if gpu.sharing.creates_devices:
            yield named_share(gpu, place if known else None)
        else:
            yield from _overlapping(gpu, place)


def _places(devices: Iterable[Wanted]) -> Iterator[tuple[str, Placement | None]]:
    for each in devices:
        if each.whole:
            yield each.gpu, None
        for placement in each.instances:
            yield each.gpu, placement


def _overlapping(gpu: Gpu, offered: Placement | None) -> Iterator[Share]:
    """Yield every client of the devices of a fixed layout that have something in common with one that is offered."""
    for device in gpu.devices:
        place = device.placement
        if place is None or offered is None or place.mask & offered.mask:
            for _ in range(device.clients):
                yield Share.of_device(gpu.index, device, device.resource)
