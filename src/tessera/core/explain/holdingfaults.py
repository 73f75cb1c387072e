"""What is held of a GPU and cannot be: more than it has, instances that overlap, one device given twice; in sentences.

Nothing here should ever be found. What is found comes from other schedulers, from hands, or from a defect. The first of
it closes the GPU for new pods (`core.packing.ledger`); all of it is listed here, for people.
"""

from collections.abc import Sequence

from tessera.core.cluster.compatibility import Fault, Rule, faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.occupancy import Holding
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.workload.need import PodKey

__all__ = ["holding_faults"]

_FULL_PERCENT = 100


def holding_faults(gpu: Gpu, holdings: Sequence[Holding]) -> tuple[str, ...]:
    """Return what cannot be about the shares that pods hold of one GPU, a sentence without full stop each.

    Beside the rules of `faults`, what is recorded of devices must not be more than the GPU has, whatever it serves. MIG
    instances are left to where they are: two 3g.40gb have more than the driver says is usable of an H100 without MIG.
    """
    held: dict[PodKey, list[Share]] = {}
    for each in holdings:
        held.setdefault(each.pod, []).append(each.share)
    found = list(faults(GpuType.of(gpu), held))
    broken = {fault.rule for fault in found}
    memory_mib = sum(each.share.memory_mib for each in holdings if each.share.profile is None)
    if memory_mib > gpu.memory_mib and broken.isdisjoint((Rule.MEMORY, Rule.SIZE)):
        found.append(Fault(Rule.MEMORY, tuple(held), {"memory": memory_mib, "most": gpu.memory_mib}))
    percent = sum(each.share.compute_percent for each in holdings)
    if percent > _FULL_PERCENT and Rule.COMPUTE not in broken:
        found.append(Fault(Rule.COMPUTE, tuple(held), {"percent": percent}))
    return tuple(f"{fault.text}, held by {', '.join(fault.holders)}" for fault in found)
