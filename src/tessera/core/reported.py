"""What an agent reports of its node: the GPUs as they are shared, what is not well, and how much memory is in use."""

from collections.abc import Iterable, Iterator

from tessera.core.gpunodestate import GpuNodeState, Sick, Used
from tessera.core.health import Health, Phase
from tessera.core.inventory import ComputeMode, Inventory
from tessera.core.snapshot import Gpu, NodeName

__all__ = ["reported", "settled"]

_PART = 20
"""What moves by less than a twentieth of the GPU is not worth a write that wakes every server."""


def reported(
    node: str, gpus: Iterable[Gpu], inventory: Inventory, health: Health, *, used: Iterable[Used], unit_mib: int
) -> GpuNodeState:
    """Return the state of a node.

    Args:
        node: its name.
        gpus: as they are shared, each with the layout that exists, before what is wanted or withheld of it.
        inventory: what the driver shows.
        health: what is known against devices.
        used: memory in use.
        unit_mib: memory of one unit.

    """
    return GpuNodeState(
        name=NodeName(node),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        sick=tuple(_sick(inventory, health)),
        used=tuple(used),
        unit_mib=unit_mib,
        driver=inventory.driver,
        reported=True,
    )


def _sick(inventory: Inventory, health: Health) -> Iterator[Sick]:
    """Yield what is given to nobody for now, by GPU and instance."""
    states = {key: state for key, state in health.states if state.phase is not Phase.HEALTHY}
    for facts in inventory.gpus:
        prohibited = "its compute mode is prohibited" if facts.compute_mode is ComputeMode.PROHIBITED else ""
        reason = states[facts.uuid].reason if facts.uuid in states else prohibited
        if reason:
            yield Sick(gpu=facts.uuid, reason=reason)
        for placement in facts.layout or ():
            state = states.get((facts.uuid, placement))
            if state is not None:
                yield Sick(gpu=facts.uuid, placement=placement, reason=state.reason)


def settled(former: Iterable[Used], measured: Iterable[Used], gpus: Iterable[Gpu]) -> tuple[Used, ...]:
    """Return the memory in use to report: as measured where it moved by 5 % of its GPU, as before elsewhere."""
    before = {(each.gpu, each.placement): each for each in former}
    sizes_mib = {gpu.uuid: gpu.memory_mib for gpu in gpus}
    return tuple(
        _settled(before.get((each.gpu, each.placement)), each, sizes_mib.get(each.gpu, 0)) for each in measured
    )


def _settled(before: Used | None, now: Used, size_mib: int) -> Used:
    if before is None or abs(now.memory_mib - before.memory_mib) * _PART >= size_mib:
        return now
    return before
