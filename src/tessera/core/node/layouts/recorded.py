"""Recorded layouts, with their placements, as targets: to restore a node, also after a reboot."""

from collections.abc import Iterable

import msgspec

from tessera.core.gpu.gpumodels import profile
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.node.layouts.configurations import LayoutTarget, exact
from tessera.errors import InvalidInput

__all__ = ["Recorded", "lost_targets", "record", "recorded_targets"]


class Recorded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorded MIG layout of one GPU."""

    uuid: str
    model: str
    """For people."""
    mig: bool
    placements: Layout = ()


def record(inventory: Inventory, former: Iterable[Recorded] = ()) -> tuple[Recorded, ...]:
    """Return the record of a node, by UUID: its GPUs with MIG, complete instances only.

    A GPU that the driver does not show, or has lost, keeps its former record.
    """
    kept = {each.uuid: each for each in former}
    for gpu in inventory.gpus:
        if gpu.mig is not None and not gpu.lost:
            placements = tuple(each.placement for each in gpu.instances)
            kept[gpu.uuid] = Recorded(
                uuid=gpu.uuid, model=gpu.model.name, mig=gpu.mig.current, placements=tuple(sorted(placements))
            )
    return tuple(kept[uuid] for uuid in sorted(kept))


def recorded_targets(recorded: Iterable[Recorded], inventory: Inventory) -> tuple[LayoutTarget, ...]:
    """Return a target for each recorded GPU, with its placements, by index.

    A missing GPU is left out if the driver has lost one that it never showed: it may be that one.

    Raises:
        InvalidInput: a GPU that this node lacks, or that does not support the layout.

    """
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    targets = []
    for each in recorded:
        gpu = gpus.get(each.uuid)
        if gpu is None and inventory.unseen:
            continue
        if gpu is None:
            raise InvalidInput(
                f"recorded GPU {each.uuid}",
                found="this node has no GPU of that UUID",
                hint=f"write the checkpoint again, of {', '.join(gpus)}"
                if gpus
                else "check the driver with nvidia-smi: it shows no GPU",
            )
        targets.append(_target(each, gpu))
    return tuple(sorted(targets, key=lambda target: target.index))


def lost_targets(
    recorded: Iterable[Recorded], inventory: Inventory
) -> tuple[tuple[LayoutTarget, ...], tuple[str, ...]]:
    """Return the targets of GPUs that lost recorded instances, as all do in a reboot, and a sentence for each other.

    A GPU gets its record back if all its present instances are part of it. With MIG off nothing was lost, and with
    other instances an administrator has repartitioned it.
    """
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    targets, notes = [], []
    for each in recorded:
        if not each.mig:
            continue
        gpu = gpus.get(each.uuid)
        if gpu is None or gpu.lost or gpu.mig is None:
            notes.append(f"recorded GPU {each.uuid} ({each.model}) is missing; its record is kept")
            continue
        try:
            target = _target(each, gpu)
        except InvalidInput as error:
            notes.append(f"record not used: {error}")
            continue
        if set(gpu.layout or ()) <= set(target.layout or ()):
            targets.append(target)
        else:
            notes.append(f"GPU {gpu.index} has instances other than the recorded ones; they are not changed")
    return tuple(sorted(targets, key=lambda target: target.index)), tuple(notes)


def _target(recorded: Recorded, gpu: GpuFacts) -> LayoutTarget:
    if not recorded.mig:
        return exact(gpu, None)
    # Names are those of the driver now.
    named = ((place, profile(gpu.model, place.profile).name) for place in recorded.placements)
    return exact(gpu, tuple(Placement(place.start, place.size, name) for place, name in named))
