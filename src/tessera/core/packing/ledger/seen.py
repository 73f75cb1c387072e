"""A node as the scheduler sees it: GPUs left to Tessera without their layout, and what is kept from new pods there."""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.core.cluster.allocators import as_keys
from tessera.core.cluster.byname import named_share
from tessera.core.cluster.gpunodestate import GpuNodeState, Sick
from tessera.core.cluster.snapshot import Gpu, Node, Share
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing

__all__ = ["seen"]

_NOTHING = Sharing(modes=())


def seen(node: Node, state: GpuNodeState) -> tuple[Node, tuple[Share, ...]]:
    """Return the node with the GPUs its agent reported, and the shares of them that are reserved.

    A GPU left to Tessera is seen without its layout: what pods hold of it are cuts, and what nobody holds may be cut
    anew. Reserved are devices that `state` wants to exist, for pods with exact requests, those that the kubelet may
    still give away (`offered`), and devices that are sick.
    Reservations are for `Ledger.put_node`: one that a pod holds already, or that cannot be held beside what pods hold,
    reserves nothing more; a whole GPU that is reserved gives nothing new even while pods are on it.

    Before the agent has reported, nothing of the node's GPUs can be granted.
    """
    if not state.reported:
        closed = tuple(msgspec.structs.replace(gpu, sharing=_NOTHING) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=closed), ()
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    sick = (share for each in state.sick if each.gpu in gpus for share in _sick(gpus[each.gpu], each))
    reserved = (*sick, *_by_name(state, gpus))
    return msgspec.structs.replace(node, gpus=tuple(map(_without_layout, state.gpus))), reserved


def _without_layout(gpu: Gpu) -> Gpu:
    sharing = gpu.sharing
    if not sharing.open or (sharing.layout is None and not sharing.offers):
        return gpu
    whole = tuple(offer for offer in sharing.offers if offer.placement is None)
    return msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(sharing, layout=None, offers=whole))


def _sick(gpu: Gpu, sick: Sick) -> Iterator[Share]:
    """Yield what keeps new pods off a sick device: the whole GPU, or every client of the instance."""
    if sick.placement is None:
        yield named_share(gpu, None)
        return
    device = next((each for each in gpu.devices if each.placement == sick.placement), None)
    if device is None or gpu.sharing.open:
        yield named_share(gpu, sick.placement)
        return
    for _ in range(device.clients):
        yield Share.of_device(gpu.index, device, device.resource)


def _by_name(state: GpuNodeState, gpus: Mapping[str, Gpu]) -> Iterator[Share]:
    """Yield what is the kubelet's of GPUs from which needs and shares are served: what it has, and what it shall get.

    Of a GPU that is the kubelet's wholly nothing need be reserved.
    """
    wanted = {each for each in as_keys(state.wanted) if each.gpu in gpus and gpus[each.gpu].sharing.open}
    offered = {each for each in as_keys(state.offered) if each.gpu in gpus and gpus[each.gpu].sharing.pooled}
    for uuid, place in sorted(wanted | offered, key=DeviceId.order):
        gpu = gpus[uuid]
        known = place is None or any(each.name == place.profile for each in gpu.model.profiles)
        if gpu.sharing.open:
            yield named_share(gpu, place if known else None)
        else:
            yield from _overlapping(gpu, place)


def _overlapping(gpu: Gpu, offered: Placement | None) -> Iterator[Share]:
    """Yield every client of the devices of a fixed layout that have something in common with one that is offered."""
    for device in gpu.devices:
        if overlap(DeviceId(gpu.uuid, device.placement), DeviceId(gpu.uuid, offered), {gpu.uuid: gpu.model}):
            for _ in range(device.clients):
                yield Share.of_device(gpu.index, device, device.resource)
