"""The totals of a plan."""

import msgspec

from tessera.cli.drawing.views import MIG_MODES, DrawnFleet
from tessera.core.workload.need import Isolation

__all__ = ["Totals", "totals"]

_WEAKEST_FIRST = (Isolation.NONE, Isolation.DRIVER, Isolation.HARDWARE)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a plan."""

    placed: int
    running: int
    pending: int
    nodes: int
    gpus: int
    gpus_used: int
    allocated_mib: int
    memory_mib: int
    instances: int
    """MIG instances after the plan."""
    instances_new: int
    instances_unused: int
    grades: tuple[tuple[Isolation, int], ...]
    """Pods on GPUs by isolation, weakest first; a pod on several devices counts with its weakest."""


def totals(fleet: DrawnFleet) -> Totals:
    """Return the numbers of a plan."""
    gpus = fleet.gpus
    devices = [device for gpu in gpus for device in gpu.devices]
    instances = [device for device in devices if device.mode in MIG_MODES]
    ranks: dict[str, int] = {}
    for device in devices:
        rank = _WEAKEST_FIRST.index(device.isolation)
        for holder in device.pods:
            ranks[holder.pod] = min(ranks.get(holder.pod, rank), rank)
    found = list(ranks.values())
    return Totals(
        placed=sum(workload.placed for workload in fleet.workloads),
        running=sum(workload.running for workload in fleet.workloads),
        pending=sum(workload.pending for workload in fleet.workloads),
        nodes=len(fleet.nodes),
        gpus=len(gpus),
        gpus_used=sum(gpu.used for gpu in gpus),
        allocated_mib=sum(gpu.allocated_mib for gpu in gpus),
        memory_mib=sum(gpu.memory_mib for gpu in gpus),
        instances=len(instances),
        instances_new=sum(not device.exists for device in instances),
        instances_unused=sum(not device.pods for device in instances),
        grades=tuple((grade, found.count(rank)) for rank, grade in enumerate(_WEAKEST_FIRST)),
    )
