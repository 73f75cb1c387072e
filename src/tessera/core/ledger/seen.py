"""A node as the scheduler sees it: GPUs left to Tessera without their layout, and what is kept from new pods there."""

from collections.abc import Iterator

import msgspec

from tessera.core.byname import named_share
from tessera.core.gpunodestate import GpuNodeState, Sick, Wanted
from tessera.core.sharing import Sharing
from tessera.core.snapshot import Gpu, Node, Share

__all__ = ["seen"]

_NOTHING = Sharing(modes=())


def seen(node: Node, state: GpuNodeState) -> tuple[Node, tuple[Share, ...]]:
    """Return the node with the GPUs its agent reported, and the shares of them that are reserved.

    A GPU left to Tessera is seen without its layout: what pods hold of it are cuts, and what nobody holds may be cut
    anew. Reserved are devices that `state` wants to exist, for pods with exact requests, and devices that are sick.
    Reservations are for `Ledger.put_node`: one that a pod holds already, or that cannot be held beside what pods hold,
    reserves nothing more; a whole GPU that is reserved gives nothing new even while pods are on it.

    Before the agent has reported, nothing of the node's GPUs can be granted.
    """
    if not state.reported:
        closed = tuple(msgspec.structs.replace(gpu, sharing=_NOTHING) for gpu in node.gpus)
        return msgspec.structs.replace(node, gpus=closed), ()
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    sick = (share for each in state.sick if each.gpu in gpus for share in _sick(gpus[each.gpu], each))
    wanted = (share for each in state.wanted if each.gpu in gpus for share in _wanted(gpus[each.gpu], each))
    reserved = (*sick, *wanted)
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


def _wanted(gpu: Gpu, wanted: Wanted) -> Iterator[Share]:
    """Yield what is kept for pods with exact requests; nothing of a GPU that is not left to Tessera."""
    if not gpu.sharing.open:
        return
    if wanted.whole:
        yield named_share(gpu, None)
    for placement in wanted.instances:
        yield named_share(gpu, placement)
