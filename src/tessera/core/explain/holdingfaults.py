"""Impossible allocations of a GPU: more than it has, overlapping instances, one device twice; in sentences.

None of these should ever occur. They come from other schedulers, manual edits, or a defect. The first of
them closes the GPU for new pods (`core.packing.ledger`); all are listed here, for people.
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
    """Return the conflicts of the shares that pods have of one GPU, a sentence without full stop each.

    Beside the rules of `faults`, recorded devices must not exceed the GPU, however it is shared. MIG
    instances are judged by their placement: two 3g.40gb have more than the usable memory of an H100 without MIG.
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
    return tuple(fault.sentence for fault in found)
